//! One connection to one server: TCP, TLS if the address says so, and the login.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::ValkeyAddress;
use crate::tls::{ConnectFailure, ServerStream, TlsFiles, connect_tcp, connect_tls, speaks_tls};

/// How long it may take to find out why a server hung up, or is silent.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// Who asks, and in which database.
#[derive(Debug, Clone, Default)]
pub struct Login {
    /// The user; without one the default user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<SecretString>,
    /// The number of the database.
    pub database: u16,
}

impl Login {
    /// For the client library.
    pub fn connection_info(&self) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default().set_db(i64::from(self.database));
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password.expose_secret());
        }
        info
    }
}

/// Why there is no connection to a server.
#[derive(Debug, Clone)]
pub enum DialFailure {
    /// There is no connection.
    Connect(ConnectFailure),
    /// The server speaks TLS only, and the address has none.
    OnlyTls,
    /// The server refused the login, hung up, or answered as no such server does.
    Login(RedisError),
}

impl From<ConnectFailure> for DialFailure {
    fn from(failure: ConnectFailure) -> Self {
        Self::Connect(failure)
    }
}

/// Connects and logs in. The connection lives as long as the handle of its task. A server may take `tls_within` for its part of the TLS
/// handshake; callers limit how long all of it takes.
///
/// # Errors
/// Why there is none.
pub async fn dial(
    address: &ValkeyAddress,
    files: &TlsFiles,
    info: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
    tls_within: Duration,
) -> Result<(MultiplexedConnection, AbortOnDropHandle<()>), DialFailure> {
    let stream = connect(address, files, tls_within).await?;
    match MultiplexedConnection::new_with_config(info, stream, config).await {
        Ok((redis, driver)) => Ok((redis, AbortOnDropHandle::new(tokio::spawn(driver)))),
        Err(error) => {
            if !address.tls && has_hung_up(&error) && speaks_tls(&address.host, address.port, PROBE_LIMIT).await {
                return Err(DialFailure::OnlyTls);
            }
            let refusal = certificate_refusal(&error, address, files).await;
            Err(refusal.map_or(DialFailure::Login(error), |why| ConnectFailure::ClientCertificate(why).into()))
        }
    }
}

/// Whether the server closed the connection. One that is just starting or stopping does so as well.
fn has_hung_up(error: &RedisError) -> bool {
    error.code().is_none() && error.kind() != redis::ErrorKind::AuthenticationFailed
}

/// What the server says against this client's certificate, if that is why a connection failed. With TLS 1.3 it says so when the handshake
/// seems to be over, and hangs up: what is written then may fail before that is read. So another connection is made, over which nothing is
/// written.
pub(super) async fn certificate_refusal(error: &RedisError, address: &ValkeyAddress, files: &TlsFiles) -> Option<String> {
    if !address.tls || !has_hung_up(error) {
        return None;
    }
    let probe = async {
        match connect(address, files, PROBE_LIMIT).await {
            Ok(mut stream) => stream.read_u8().await.err().map(|error| ConnectFailure::of_io(&error)),
            Err(failure) => Some(failure),
        }
    };
    match timeout(PROBE_LIMIT, probe).await {
        Ok(Some(ConnectFailure::ClientCertificate(why))) => Some(why),
        _ => None,
    }
}

async fn connect(address: &ValkeyAddress, files: &TlsFiles, tls_within: Duration) -> Result<Box<dyn ServerStream>, ConnectFailure> {
    let tcp = connect_tcp(&address.host, address.port).await?;
    if !address.tls {
        return Ok(Box::new(tcp));
    }
    match connect_tls(tcp, &address.host, files, &[], tls_within).await {
        Ok(stream) => Ok(Box::new(stream)),
        // Valkey 8 waits for the end of the line that it takes the handshake for; one that is stopped is silent as well.
        Err(ConnectFailure::SilentOnTls(_)) if speaks_plainly(address).await => Err(ConnectFailure::NotTls),
        Err(failure) => Err(failure),
    }
}

/// Whether the server answers without TLS, whatever it answers.
async fn speaks_plainly(address: &ValkeyAddress) -> bool {
    let probe = async {
        let mut tcp = TcpStream::connect((address.host.as_str(), address.port)).await.ok()?;
        tcp.write_all(b"PING\r\n").await.ok()?;
        // A simple string, or an error such as that a password is needed.
        Some(matches!(tcp.read_u8().await.ok()?, b'+' | b'-'))
    };
    timeout(PROBE_LIMIT, probe).await.ok().flatten().unwrap_or(false)
}
