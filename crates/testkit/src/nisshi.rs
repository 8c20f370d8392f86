//! Nisshi, which was called Tansu before version 0.7: one broker that speaks Kafka's protocol.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::certs::CertIdentity;
use crate::command::run_beside;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process};
use crate::proxy::TlsProxy;
use crate::server::{server, started};
use crate::servers::cargo::NISSHI;

const ADVICE: &str = "the broker of the tests did not do that";

/// How a broker is started. The default: no topics, no TLS, everybody may do everything.
#[derive(Clone, Debug, Default)]
pub struct NisshiOptions {
    user: Option<(String, String)>,
    tls: Option<CertIdentity>,
    topics: Vec<(String, u32)>,
}

impl NisshiOptions {
    /// Only for this user, by SCRAM-SHA-512.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// With TLS and this certificate, where clients connect: see [`Nisshi::brokers`].
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(identity.clone());
        self
    }

    /// With this topic of so many partitions.
    #[must_use]
    pub fn with_topic(mut self, name: &str, partitions: u32) -> Self {
        self.topics.push((name.to_owned(), partitions));
        self
    }
}

/// One running broker; killed when dropped. Everything is kept over a restart.
#[derive(Debug)]
pub struct Nisshi {
    // Dropped first: ports and storage outlive the process.
    process: Process,
    /// This version has no TLS, so a proxy has it. The broker tells clients the proxy's address, so none goes past it.
    tls: Option<TlsProxy>,
    port: Port,
    storage: TempDir,
}

server!(Nisshi);

impl Nisshi {
    /// A broker with these options, ready for clients. The first one ever takes many minutes, because it is compiled.
    pub async fn start(options: NisshiOptions) -> Result<Self> {
        let program = tokio::task::spawn_blocking(|| NISSHI.program()).await;
        let program = program.map_err(|error| Error::new(format!("{}: {error}", NISSHI.package)))??;
        started(async || Self::launch(&program, &options).await).await
    }

    async fn launch(program: &Path, options: &NisshiOptions) -> Result<Self> {
        let (port, storage) = (Port::reserve()?, folder::temporary("nisshi-storage")?);
        let tls = match &options.tls {
            Some(identity) => Some(TlsProxy::start(port.address(), identity).await?),
            None => None,
        };
        let clients = tls.as_ref().map_or(port.address(), TlsProxy::address);
        let broker = Self { process: process(program, port.address(), clients, storage.path(), false)?, tls, port, storage };
        // Its tools have neither user nor TLS, so they come before there is a user, and behind the proxy.
        broker.wait_ready().await?;
        let address = broker.address();
        for (topic, partitions) in &options.topics {
            tool(program, ["topic", "create", "--broker", &address, topic, "--partitions", &partitions.to_string()]).await?;
        }
        let Some((name, password)) = &options.user else { return Ok(broker) };
        tool(program, ["user", "create", "--broker", &address, name, password]).await?;
        broker.kill()?;
        let process = process(program, broker.port.address(), clients, broker.storage.path(), true)?;
        Ok(Self { process, ..broker })
    }

    async fn wait_ready(&self) -> Result<()> {
        let probe = async || TcpStream::connect(self.socket_addr()).await.map(drop).map_err(|error| error.to_string());
        self.process.until("it listens", probe).await
    }

    /// Where clients connect, with TLS if it was started with a certificate.
    pub fn brokers(&self) -> SocketAddr {
        self.tls.as_ref().map_or(self.port.address(), TlsProxy::address)
    }

    /// The SQLite file in which it keeps everything.
    pub fn file(&self) -> PathBuf {
        file(self.storage.path())
    }

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }
}

fn file(storage: &Path) -> PathBuf {
    storage.join("broker.db")
}

/// `clients`: the address that the broker tells its clients.
fn process(program: &Path, listens: SocketAddr, clients: SocketAddr, storage: &Path, authenticates: bool) -> Result<Process> {
    let (listens_at, advertises) = (format!("tcp://{listens}"), format!("tcp://{clients}"));
    // One slash more than usual: with three it would be below the folder in which the broker runs.
    let storage = format!("sqlite:///{}", file(storage).display());
    let fixed = ["broker", "--silent", "--listener-url", listens_at.as_str(), "--advertised-listener-url", advertises.as_str()];
    let mut arguments: Vec<String> = fixed.into_iter().chain(["--storage-engine", storage.as_str()]).map(str::to_owned).collect();
    if authenticates {
        arguments.push("--authentication".to_owned());
    }
    let title = format!("{} {}", NISSHI.package, NISSHI.version);
    let launch = Launch::new(title, PathBuf::from(program), arguments, folder::temporary("nisshi")?);
    Launch { clients: ("tcp", listens), ..launch }.start()
}

async fn tool<const N: usize>(program: &Path, arguments: [&str; N]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    run_beside(command, ADVICE).await.map(drop)
}
