//! A fake member: it proves to be whichever member its caller wants, as one that knows the token can, and answers what the test says.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};

use hyper::body::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::channel::{self, Side};
use crate::peers::PEER_TOKEN;

/// Each answer of a fake member.
#[derive(Clone, Copy)]
pub(crate) struct Says {
    pub(crate) status: u16,
    /// Besides the one that marks the answers of members.
    pub(crate) headers: &'static [(&'static str, &'static str)],
    pub(crate) body: &'static str,
}

impl Says {
    pub(crate) const OK: Self = Self { status: 200, headers: &[], body: "ok" };
}

/// A request that a fake member has heard.
#[derive(Debug)]
pub(crate) struct HeardRequest {
    pub(crate) head: http::request::Parts,
    pub(crate) body: Vec<u8>,
}

/// Its address, and what it hears.
pub(crate) fn fake(runtime: &Runtime, says: Says) -> (SocketAddr, Receiver<HeardRequest>) {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap();
    let (arrived, requests) = mpsc::channel();
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, says, arrived.clone()));
        }
    });
    (at, requests)
}

async fn serve(stream: TcpStream, says: Says, arrived: Sender<HeardRequest>) {
    // A caller may have another token, or go.
    let Ok(opened) = channel::taken(stream, Some(PEER_TOKEN)).await else { return };
    let Ok(mut connection) = h2::server::handshake(opened.plain(Side::Recipient)).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, says, arrived.clone()));
    }
}

async fn answer(
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    says: Says,
    arrived: Sender<HeardRequest>,
) {
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(Ok(piece)) = stream.data().await {
        let _ = stream.flow_control().release_capacity(piece.len());
        body.extend_from_slice(&piece);
    }
    // First, so that a test that has the answer finds it.
    let _ = arrived.send(HeardRequest { head, body });
    let mut response = http::Response::builder().status(says.status).header("shardwise-peer", "1");
    for (name, value) in says.headers {
        response = response.header(*name, *value);
    }
    if let Ok(mut sending) = respond.send_response(response.body(()).unwrap(), false) {
        let _ = sending.send_data(Bytes::from_static(says.body.as_bytes()), true);
    }
}
