//! Why a server hung up behind the handshake of TLS. With TLS 1.3 a server that refuses a client's certificate says so when the handshake
//! seems to be over, and hangs up: what is written then may fail before that is read. So another handshake is made, after which nothing is
//! written.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::time::Duration;

use async_nats::ConnectError;
use shardwise_discovery::tls::{ConnectFailure, connect_tcp, connect_tls};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::time::timeout;

use crate::dial::DialSettings;

/// How long a server may take for a handshake and for what it has against the certificate.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(1);
/// How long looking at all servers may take.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// How long a greeting may be.
const GREETING_BYTES_MAX: u64 = 65_536;

/// Whether a refusal may have been missed: the server hung up on what was written.
pub(crate) fn may_be_refused(error: &ConnectError) -> bool {
    let hung_up = [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];
    io_of(error).is_some_and(|io| hung_up.contains(&io.kind()))
}

/// The failure of the connection itself.
pub(crate) fn io_of(error: &ConnectError) -> Option<&io::Error> {
    error.source().and_then(|source| source.downcast_ref())
}

/// What the first server that refuses this client's certificate, or the lack of one, says.
pub(crate) async fn refusal(dial: &DialSettings, first: usize) -> Option<String> {
    let probe = async {
        for server in dial.servers_from(first) {
            if let Ok(Some(why)) = timeout(HANDSHAKE_LIMIT, refusal_of(server.host(), server.port(), dial)).await {
                return Some(why);
            }
        }
        None
    };
    timeout(PROBE_LIMIT, probe).await.ok().flatten()
}

async fn refusal_of(host: &str, port: u16, dial: &DialSettings) -> Option<String> {
    let mut tcp = BufReader::new(connect_tcp(host, port).await.ok()?).take(GREETING_BYTES_MAX);
    let mut greeting = Vec::new();
    tcp.read_until(b'\n', &mut greeting).await.ok()?;
    let failure = match connect_tls(tcp.into_inner().into_inner(), host, &dial.tls, &[], HANDSHAKE_LIMIT).await {
        // A server that is content waits for the login.
        Ok(mut stream) => ConnectFailure::of_io(&stream.read_u8().await.err()?),
        Err(failure) => failure,
    };
    match failure {
        ConnectFailure::ClientCertificate(why) => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use shardwise_testkit::{Authority, CertIdentity, Nats, NatsOptions};

    use super::*;
    use crate::NatsBackendConfig;

    #[tokio::test]
    async fn a_refused_certificate_is_found_behind_the_handshake() {
        let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
        for options in [NatsOptions::default(), NatsOptions::default().newest()] {
            let server = Nats::start(options.with_mutual_tls(&authority.server().unwrap())).await.unwrap();
            let dial = |identity: Option<&CertIdentity>| NatsBackendConfig {
                urls: vec![server.address()],
                ca_file: Some(authority.file()),
                cert_file: identity.map(CertIdentity::certificate),
                key_file: identity.map(CertIdentity::key),
                ..NatsBackendConfig::default()
            };
            for refused in [dial(None), dial(Some(&other.client("worker").unwrap()))] {
                assert!(refusal(&refused.dial().unwrap(), 0).await.is_some(), "{refused:?}");
            }
            assert_eq!(refusal(&dial(Some(&authority.client("worker").unwrap())).dial().unwrap(), 0).await, None);
        }
    }
}
