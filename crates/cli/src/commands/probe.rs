//! `shardwise probe`: checks the health of a shardwise process, for containers without another HTTP client.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};

const ANSWER_BYTES: u64 = 64 * 1024;

#[derive(Debug, Args)]
#[command(after_help = "\
For a container's health check: the image has no other program. It speaks HTTP without TLS.
Exit code 1: the answer is no. Exit code 3: there is no answer.

  shardwise probe                                  # /readyz of `serve`
  shardwise probe --at 127.0.0.1:9600 --path /livez")]
pub(crate) struct Probe {
    /// Ask at this address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8087", value_parser = address_and_port)]
    at: SocketAddr,
    /// Ask whether it may own something, or whether it answers
    #[arg(long, value_name = "PATH", default_value = "/readyz", value_parser = ["/readyz", "/livez"])]
    path: String,
    /// Wait this many seconds for the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    within: u64,
}

fn address_and_port(text: &str) -> std::result::Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write ADDRESS:PORT, such as 127.0.0.1:8087")
}

impl Probe {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        common.without_settings("it asks a process, not a group")?;
        let (status, answer) = self.ask().map_err(|error| {
            let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            let why = match error.kind() {
                _ if late => format!("no answer within {} s: look at its log, or allow more with --within", self.within),
                ErrorKind::ConnectionRefused => {
                    "nothing listens there: check that it runs, or name its --listen address with --at".to_owned()
                }
                _ => error.to_string(),
            };
            CliFailure::new(Code::Unavailable, format!("cannot ask {}: {why}", self.at))
        })?;
        let is_well = status == 200;
        let answer = answer.trim();
        common.print(&json!({"well": is_well, "status": status, "answer": answer}), || format!("{status} {answer}\n"))?;
        Ok(if is_well { Code::Ok } else { Code::No })
    }

    /// Returns the status and the text of the answer.
    fn ask(&self) -> std::io::Result<(u16, String)> {
        let end = Instant::now() + Duration::from_secs(self.within);
        let left = || end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or(ErrorKind::TimedOut);
        let mut stream = TcpStream::connect_timeout(&self.at, left()?)?;
        stream.set_write_timeout(Some(left()?))?;
        write!(stream, "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, self.at)?;
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        while (answer.len() as u64) < ANSWER_BYTES {
            stream.set_read_timeout(Some(left()?))?;
            match stream.read(&mut piece)? {
                0 => break,
                read => answer.extend_from_slice(&piece[..read]),
            }
        }
        let text = String::from_utf8_lossy(&answer);
        let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status =
            status.ok_or_else(|| std::io::Error::new(ErrorKind::InvalidData, "the program that answers there does not speak HTTP"))?;
        Ok((status, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()))
    }
}
