//! HTTP/2 by hyper and nothing else: a server that reads the body and answers, and a client with one connection.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

use super::server::BYTES;

/// More than are in flight, and the flow control of connections between members.
const STREAMS_MAX: u32 = 256;
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

pub(crate) async fn serve() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    println!("ready {}", listener.local_addr().unwrap().port());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.max_concurrent_streams(STREAMS_MAX);
        server.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        // Its end is the client's.
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(&[b'x'; BYTES])));
    if request.into_body().collect().await.is_err() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    Ok(response)
}

#[derive(Clone)]
pub(crate) struct BareClient(SendRequest<Full<Bytes>>);

impl BareClient {
    pub(crate) async fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let (sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) async fn ask(mut self, method: Method) {
        let body = if method == Method::POST { Bytes::from_static(&[b'x'; BYTES]) } else { Bytes::new() };
        let request = Request::builder().method(method).uri("http://localhost/echo").body(Full::new(body)).unwrap();
        let response = self.0.send_request(request).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), BYTES);
    }
}
