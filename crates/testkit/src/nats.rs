//! NATS with `JetStream`: one server.

use std::fmt::Write as _;
use std::path::Path;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::certs::CertIdentity;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process};
use crate::server::{server, started};
use crate::servers;

const CONFIGURATION: &str = "nats.conf";

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

    fn write(&self, folder: &Path, port: &Port) -> Result<()> {
        let data = folder.join("data");
        let mut text = format!("listen: \"{}\"\njetstream {{ store_dir: {:?} }}\n", port.address(), data.display().to_string());
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
        std::fs::write(folder.join(CONFIGURATION), text).map_err(Error::io(CONFIGURATION))
    }
}

/// One running NATS server; killed when dropped.
#[derive(Debug)]
pub struct Nats {
    // Dropped first: the port outlives the process.
    process: Process,
    port: Port,
    options: NatsOptions,
}

server!(Nats);

impl Nats {
    /// A server with these options, ready for clients.
    pub async fn start(options: NatsOptions) -> Result<Self> {
        started(async || Self::launch(&options)).await
    }

    fn launch(options: &NatsOptions) -> Result<Self> {
        let port = Port::reserve()?;
        let folder = folder::temporary("nats")?;
        options.write(folder.path(), &port)?;
        let arguments = vec!["-c".to_owned(), folder.path().join(CONFIGURATION).display().to_string()];
        let clients = (if options.tls.is_some() { "tls" } else { "nats" }, port.address());
        let launch = Launch::new("nats-server", servers::program("nats-server")?, arguments, folder);
        let process = Launch { clients, ..launch }.start()?;
        Ok(Self { process, port, options: options.clone() })
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

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }

    /// The same with other options, such as another password.
    pub async fn restart_with(&mut self, options: NatsOptions) -> Result<()> {
        options.write(self.folder(), &self.port)?;
        self.options = options;
        self.restart().await
    }
}
