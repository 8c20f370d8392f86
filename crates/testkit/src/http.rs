//! As much HTTP as it takes to set up a server on this machine: one request for each connection, without TLS.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::error::{Error, Result};

/// No answer of a healthy server takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// The status and the body of an answer.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl HttpAnswer {
    /// The body of an answer with status 200; every other is an error, whose text names the call.
    pub(crate) fn success(self, method: &str, path: &str) -> Result<Value> {
        if self.status != 200 {
            return Err(Error::new(format!("{method} {path}: {} {}", self.status, self.body.trim())));
        }
        // A plain text, such as Consul's for a status, is a text as a value too.
        Ok(serde_json::from_str(&self.body).unwrap_or(Value::String(self.body)))
    }
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Result<HttpAnswer> {
    request(to, "GET", path, None, None).await
}

/// A request, with the query in its path and with the name and value of one header more. HTTP 1.0, because its answer ends with the
/// connection.
pub(crate) async fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    header: Option<(&str, &str)>,
    body: Option<&Value>,
) -> Result<HttpAnswer> {
    let what = || format!("{method} http://{to}{path}");
    let body = body.map(Value::to_string).unwrap_or_default();
    let header = header.map_or_else(String::new, |(name, value)| format!("{name}: {value}\r\n"));
    let request = format!("{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {}\r\n{header}\r\n{body}", body.len());
    match tokio::time::timeout(LIMIT, exchange(to, request)).await {
        Ok(Ok(answer)) => parse(&answer).ok_or_else(|| Error::new(format!("{}: no answer in HTTP", what()))),
        Ok(Err(error)) => Err(Error::io(what())(error)),
        Err(_) => Err(Error::new(format!("{}: no answer within {LIMIT:?}", what()))),
    }
}

async fn exchange(to: SocketAddr, request: String) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

fn parse(answer: &[u8]) -> Option<HttpAnswer> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(HttpAnswer { status, body: body.to_owned() })
}
