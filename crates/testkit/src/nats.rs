//! NATS with `JetStream`: one server.

use std::fmt::Write as _;
use std::net::SocketAddr;

use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::certs::CertIdentity;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::Process;
use crate::server::{server, started};
use crate::servers;

/// How a server is started. The default: `JetStream`, everybody may do everything, no TLS.
#[derive(Clone, Debug, Default)]
pub struct NatsOptions {
    user: Option<(String, String)>,
    tls: Option<CertIdentity>,
    settings: Vec<String>,
}

impl NatsOptions {
    /// Only this user with this password.
    #[must_use]
    pub fn with_user(mut self, user: &str, password: &str) -> Self {
        self.user = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Only with TLS, with this certificate.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(identity.clone());
        self
    }

    /// A line of the server's configuration, such as `max_payload: 4096`.
    #[must_use]
    pub fn with_setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    fn text(&self, folder: &TempDir, port: u16) -> String {
        let data = folder.path().join("data");
        let mut text = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {:?} }}\n", data.display().to_string());
        // Writing to a text does not fail.
        if let Some((user, password)) = &self.user {
            let _ = writeln!(text, "authorization {{ user: {user:?}, password: {password:?} }}");
        }
        if let Some(identity) = &self.tls {
            let (certificate, key) = (identity.certificate().display().to_string(), identity.key().display().to_string());
            let _ = writeln!(text, "tls {{ cert_file: {certificate:?}, key_file: {key:?} }}");
        }
        for line in &self.settings {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// One running NATS server; killed when dropped.
#[derive(Debug)]
pub struct Nats {
    // Dropped first: the folder and the port outlive the process.
    process: Process,
    port: Port,
    options: NatsOptions,
    folder: TempDir,
}

server!(Nats);

impl Nats {
    /// A server with these options, ready for clients.
    pub async fn start(options: NatsOptions) -> Result<Self> {
        started(async || Self::launch(&options)).await
    }

    /// Starts the process and does not wait for it.
    fn launch(options: &NatsOptions) -> Result<Self> {
        let port = Port::reserve()?;
        let folder = folder::temporary("nats")?;
        let path = folder.path().join("nats.conf");
        std::fs::write(&path, options.text(&folder, port.number())).map_err(Error::io(path.display()))?;
        let arguments = vec!["-c".to_owned(), path.display().to_string()];
        let process = Process::new("nats-server".into(), servers::program("nats-server")?, arguments, folder.path().join("log"));
        process.start()?;
        Ok(Self { process, port, options: options.clone(), folder })
    }

    /// Waits until it greets clients and `JetStream` is there.
    async fn wait_ready(&self) -> Result<()> {
        let look = async || {
            let mut stream = TcpStream::connect(self.socket_addr()).await.map_err(|error| error.to_string())?;
            let mut greeting = [0; 4];
            stream.read_exact(&mut greeting).await.map_err(|error| error.to_string())?;
            if greeting == *b"INFO" { Ok(()) } else { Err(String::from_utf8_lossy(&greeting).into_owned()) }
        };
        self.process.until("it greets", look).await
    }

    /// Where clients connect, as `nats://127.0.0.1:PORT`, or `tls` if it was started with TLS.
    pub fn address(&self) -> String {
        format!("{}://{}", if self.options.tls.is_some() { "tls" } else { "nats" }, self.socket_addr())
    }

    /// Where clients connect, for a proxy.
    pub fn socket_addr(&self) -> SocketAddr {
        self.port.address()
    }

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.process.kill()?;
        self.process.start()?;
        self.wait_ready().await
    }

    /// The same with other options, such as another password.
    pub async fn restart_with(&mut self, options: NatsOptions) -> Result<()> {
        let path = self.folder.path().join("nats.conf");
        std::fs::write(&path, options.text(&self.folder, self.port.number())).map_err(Error::io(path.display()))?;
        self.options = options;
        self.restart().await
    }
}
