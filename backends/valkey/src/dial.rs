//! One connection to one server: TCP, TLS if the address says so, the login, and what kind of server it is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use secrecy::{ExposeSecret, SecretString};
use shardwise_discovery::one_line;
use shardwise_discovery::tls::{SystemTrust, TlsError, TlsFiles, provider};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::address::ValkeyAddress;
use crate::error::{Failure, ServerContext, ValkeyResult};

/// How long it may take to find out why a server hung up, or is silent.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// How long a server may take for its part of a handshake; below the limit of the whole connection.
const TLS_LIMIT: Duration = Duration::from_millis(1500);

/// Who asks, and in which database.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<SecretString>,
    pub(crate) database: u16,
}

trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for S {}

/// Reads the files of TLS, anew for each connection.
pub(crate) fn load(files: &TlsFiles) -> ValkeyResult<Arc<ClientConfig>> {
    let unusable = |error: TlsError| Failure::Setting { setting: error.file.setting(), why: error.of_setting() };
    Ok(Arc::new(files.client_config(SystemTrust::Required).map_err(unusable)?))
}

/// Connects and logs in. With `pushed` it speaks RESP3, and messages of channels go there. The connection lives as long as the handle of
/// its task.
pub(crate) async fn dial(
    address: &ValkeyAddress,
    login: &Login,
    files: &TlsFiles,
    context: &ServerContext,
    pushed: Option<impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static>,
) -> ValkeyResult<(MultiplexedConnection, AbortOnDropHandle<()>)> {
    let mut info = RedisConnectionInfo::default().set_db(i64::from(login.database)).set_skip_set_lib_name();
    if let Some(username) = &login.username {
        info = info.set_username(username);
    }
    if let Some(password) = &login.password {
        info = info.set_password(password.expose_secret());
    }
    // Callers have limits for their whole call.
    let mut config = AsyncConnectionConfig::new().set_response_timeout(None);
    if let Some(pushed) = pushed {
        info = info.set_protocol(ProtocolVersion::RESP3);
        config = config.set_push_sender(pushed);
    }
    let stream = connect(address, files, context).await?;
    let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
    match opened {
        Ok((redis, driver)) => Ok((redis, AbortOnDropHandle::new(tokio::spawn(driver)))),
        Err(error) => {
            let failure = context.meaning(&error);
            // A server that is just starting or stopping hangs up as well.
            let hung_up = matches!(failure, Failure::Broken { .. } | Failure::NotValkey { .. });
            if hung_up && !address.tls && speaks_tls(address).await {
                return Err(Failure::OnlyTls { place: context.place.clone(), setting: context.setting });
            }
            Err(failure)
        }
    }
}

/// Whether the server speaks TLS, whatever its certificate.
async fn speaks_tls(address: &ValkeyAddress) -> bool {
    let look = async {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().ok()?;
        let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(address.host.clone()).ok()?;
        let tcp = TcpStream::connect((address.host.as_str(), address.port)).await.ok()?;
        match TlsConnector::from(Arc::new(config)).connect(name, tcp).await {
            Ok(_) => Some(true),
            // Any objection of TLS's own, such as an unknown issuer, shows that there is TLS.
            Err(error) => inner(&error).map(|error| !matches!(error, rustls::Error::InvalidMessage(_))),
        }
    };
    timeout(PROBE_LIMIT, look).await.ok().flatten().unwrap_or(false)
}

/// Whether the server answers without TLS, whatever it answers.
async fn speaks_plainly(address: &ValkeyAddress) -> bool {
    let look = async {
        let mut tcp = TcpStream::connect((address.host.as_str(), address.port)).await.ok()?;
        tcp.write_all(b"PING\r\n").await.ok()?;
        // A simple string, or an error such as that a password is needed.
        Some(matches!(tcp.read_u8().await.ok()?, b'+' | b'-'))
    };
    timeout(PROBE_LIMIT, look).await.ok().flatten().unwrap_or(false)
}

/// rustls hands its errors out in an `io::Error`.
fn inner(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

async fn connect(address: &ValkeyAddress, files: &TlsFiles, context: &ServerContext) -> ValkeyResult<Box<dyn ServerStream>> {
    let unreachable = |error: io::Error| Failure::Unreachable {
        place: context.place.clone(),
        setting: context.setting,
        why: one_line(&error.to_string()),
    };
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    // What was sent and not received yet must not arrive when the connection has been given up.
    tcp.set_zero_linger().map_err(unreachable)?;
    if !address.tls {
        return Ok(Box::new(tcp));
    }
    let files = files.clone();
    let config = tokio::task::spawn_blocking(move || load(&files)).await.map_err(|error| unreachable(io::Error::other(error)))??;
    let refused = |why: String| Failure::Handshake { place: context.place.clone(), setting: context.setting, why };
    let name = ServerName::try_from(address.host.clone()).map_err(|error| refused(one_line(&error.to_string())))?;
    match timeout(TLS_LIMIT, TlsConnector::from(config).connect(name, tcp)).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(error)) => Err(match inner(&error) {
            Some(inner) => of_tls(inner, context),
            // A server that is just starting or stopping hangs up as well.
            None => unreachable(error),
        }),
        // Valkey 8 waits for the end of the line that it takes the handshake for; one that is stopped is silent as well.
        Err(_) if speaks_plainly(address).await => Err(Failure::NotTls { place: context.place.clone(), setting: context.setting }),
        Err(_) => {
            Err(unreachable(io::Error::other(format!("it takes the connection and is silent on TLS for {} ms", TLS_LIMIT.as_millis()))))
        }
    }
}

/// The meaning of an error of TLS.
fn of_tls(error: &rustls::Error, context: &ServerContext) -> Failure {
    use CertificateError as Bad;
    let (place, setting, why) = (context.place.clone(), context.setting, one_line(&error.to_string()));
    let problem = match error {
        rustls::Error::InvalidCertificate(problem) => problem,
        rustls::Error::InvalidMessage(_) => return Failure::NotTls { place, setting },
        rustls::Error::AlertReceived(_) => return Failure::ClientCertificate { place, why },
        _ => return Failure::Handshake { place, setting, why },
    };
    let other = format!("is not accepted ({why})");
    let (why, advice) = match problem {
        Bad::Expired | Bad::ExpiredContext { .. } => ("has expired", "renew it, or check this machine's clock"),
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => ("is not valid yet", "check this machine's clock"),
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
            ("is for another name", "write a name that it has, or have it made for this one")
        }
        Bad::UnknownIssuer => {
            ("is signed by an issuer that is not trusted here", "set discovery.valkey.ca_file to the certificate of its issuer")
        }
        _ => (other.as_str(), "check discovery.valkey.ca_file"),
    };
    Failure::Certificate { place, why: why.to_owned(), advice }
}

/// How long one attempt to connect may take.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerFacts {
    /// The name of its data's history.
    pub(crate) origin: String,
    is_valkey: bool,
    version: String,
    mode: String,
    role: String,
    has_memory_limit: bool,
    policy: String,
}

impl ServerFacts {
    /// Reads the answer to INFO.
    pub(crate) fn read(info: &str) -> Self {
        let mut facts = Self::default();
        for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
            match name {
                "master_replid" => value.clone_into(&mut facts.origin),
                "valkey_version" => facts.is_valkey = true,
                "redis_version" => value.clone_into(&mut facts.version),
                // Valkey has both names.
                "redis_mode" | "server_mode" => value.clone_into(&mut facts.mode),
                "role" => value.clone_into(&mut facts.role),
                "maxmemory" => facts.has_memory_limit = value != "0",
                "maxmemory_policy" => value.clone_into(&mut facts.policy),
                _ => {}
            }
        }
        facts
    }

    /// Whether members can meet at such a server.
    pub(crate) fn check(&self, context: &ServerContext) -> ValkeyResult<()> {
        let place = context.place.clone();
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        match self.mode.as_str() {
            "sentinel" => return Err(Failure::IsSentinel { place }),
            "cluster" => return Err(Failure::Cluster { place }),
            _ => {}
        }
        if !self.is_valkey && major.is_some_and(|major| major < 7) {
            return Err(Failure::OldServer { place, setting: context.setting, version: self.version.clone() });
        }
        if self.role.is_empty() || self.origin.is_empty() {
            return Err(Failure::NotValkey { place, setting: context.setting, why: "INFO lacks role or master_replid".into() });
        }
        if self.role != "master" {
            return Err(context.no_primary());
        }
        if self.has_memory_limit && self.policy.starts_with("allkeys") {
            return Err(Failure::Evicts { place, policy: self.policy.clone() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(info: &str, has_sentinels: bool) -> Result<(), Failure> {
        let context = ServerContext {
            place: "h:1".into(),
            setting: "discovery.valkey.url",
            of: "",
            username: None,
            prefix: "p".into(),
            has_sentinels,
        };
        ServerFacts::read(info).check(&context)
    }

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n# Replication\r\nrole:master\r\nmaster_replid:0a1b\r\n\
                        # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn only_a_primary_of_its_own_that_keeps_its_keys_will_do() {
        assert!(said(GOOD, false).is_ok());
        assert_eq!(ServerFacts::read(GOOD).origin, "0a1b");
        let changed = |from: &str, to: &str| GOOD.replace(from, to);
        assert!(matches!(said(&changed("role:master", "role:slave"), false), Err(Failure::Replica { .. })));
        assert!(matches!(said(&changed("role:master", "role:slave"), true), Err(Failure::NotPrimary { .. })));
        assert!(matches!(said(&changed("standalone", "cluster"), false), Err(Failure::Cluster { .. })));
        assert!(matches!(said(&changed("standalone", "sentinel"), false), Err(Failure::IsSentinel { .. })));
        let old = said(&changed("7.0.15", "6.2.14"), false).unwrap_err().to_string();
        assert!(["6.2.14", "Redis 7.0 or newer", "upgrade it", "discovery.valkey.url"].iter().all(|part| old.contains(part)), "{old}");
        assert!(said(&changed("7.0.15\r\n", "6.2.14\r\nvalkey_version:9.0.0\r\n"), false).is_ok(), "Valkey counts anew");
        let full = changed("maxmemory:0", "maxmemory:1000");
        assert!(said(&full, false).is_ok());
        assert!(matches!(said(&full.replace("noeviction", "allkeys-lru"), false), Err(Failure::Evicts { .. })));
        assert!(said(&full.replace("noeviction", "volatile-lru"), false).is_ok());
        assert!(matches!(said("", false), Err(Failure::NotValkey { .. })));
    }
}
