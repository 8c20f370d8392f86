//! As much of PostgreSQL's protocol as it takes to set up a server on this machine: no password, no TLS, statements without parameters.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::error::{Error, Result};

/// The protocol's version 3.0.
const VERSION: i32 = 3 << 16;
/// No statement of a test's setting-up takes longer.
const LIMIT: Duration = Duration::from_secs(30);
/// A longer message than this is none of PostgreSQL's.
const MESSAGE_MAX: usize = 1 << 26;

/// Rows as text, in the order in which they came.
pub(super) type Rows = Vec<Vec<Option<String>>>;

/// Runs statements, separated by semicolons, as this user in this database.
pub(super) async fn execute(to: SocketAddr, user: &str, database: &str, sql: &str) -> Result<Rows> {
    let what = || format!("{sql} in {database} of PostgreSQL at {to}");
    match tokio::time::timeout(LIMIT, exchange(to, user, database, sql)).await {
        Ok(Ok(Ok(rows))) => Ok(rows),
        Ok(Ok(Err(refused))) => Err(Error::new(format!("{}: {refused}", what()))),
        Ok(Err(error)) => Err(Error::io(what())(error)),
        Err(_) => Err(Error::new(format!("{}: no answer within {LIMIT:?}", what()))),
    }
}

/// The server's refusal is the inner error.
async fn exchange(to: SocketAddr, user: &str, database: &str, sql: &str) -> std::io::Result<std::result::Result<Rows, String>> {
    let mut stream = TcpStream::connect(to).await?;
    let startup = format!("user\0{user}\0database\0{database}\0\0");
    stream.write_all(&[&length(startup.len() + 4)[..], &VERSION.to_be_bytes(), startup.as_bytes()].concat()).await?;
    if let Err(refused) = until_ready(&mut stream).await? {
        return Ok(Err(refused));
    }
    stream.write_all(&[b"Q", &length(sql.len() + 1)[..], sql.as_bytes(), b"\0"].concat()).await?;
    let answer = until_ready(&mut stream).await?;
    stream.write_all(&[b"X", &length(0)[..]].concat()).await?;
    Ok(answer)
}

/// A message's length counts itself.
fn length(rest: usize) -> [u8; 4] {
    u32::try_from(rest + 4).unwrap_or(u32::MAX).to_be_bytes()
}

/// Reads up to where the server waits for the next statement, or has closed with an error.
async fn until_ready(stream: &mut TcpStream) -> std::io::Result<std::result::Result<Rows, String>> {
    let (mut rows, mut refused) = (Rows::new(), None);
    loop {
        let kind = match stream.read_u8().await {
            Ok(kind) => kind,
            // After an error at the beginning the server closes.
            Err(error) => return refused.map_or(Err(error), |text| Ok(Err(text))),
        };
        let rest = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX).saturating_sub(4);
        if rest > MESSAGE_MAX {
            return Err(std::io::Error::other("an answer that is not PostgreSQL's"));
        }
        let mut message = vec![0; rest];
        stream.read_exact(&mut message).await?;
        match kind {
            b'D' => rows.push(row(&message).ok_or_else(|| std::io::Error::other("a row that is cut off"))?),
            b'E' => refused = Some(error_text(&message)),
            b'Z' => return Ok(refused.map_or(Ok(rows), Err)),
            _ => {}
        }
    }
}

/// A number of columns, and each with its length before it, which is -1 for NULL.
fn row(message: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = message.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            columns.push(None);
            rest = after;
            continue;
        };
        let (value, after) = after.split_at_checked(length)?;
        columns.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(columns)
}

/// Fields of one letter and a text each; `M` is what happened.
fn error_text(message: &[u8]) -> String {
    let mut fields = message.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    fields.find(|(letter, _)| **letter == b'M').map_or_else(String::new, |(_, text)| String::from_utf8_lossy(text).into_owned())
}
