//! Tansu: one broker that speaks Kafka's protocol.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::command::run_beside;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process};
use crate::server::{server, started};
use crate::servers::cargo::TANSU;

const ADVICE: &str = "the broker of the tests did not do that";

/// How a broker is started. The default: no topics, everybody may do everything.
#[derive(Clone, Debug, Default)]
pub struct TansuOptions {
    user: Option<(String, String)>,
    topics: Vec<(String, u32)>,
}

impl TansuOptions {
    /// Only for this user, by SCRAM-SHA-512.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
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
pub struct Tansu {
    // Dropped first: port and storage outlive the process.
    process: Process,
    port: Port,
    storage: TempDir,
}

server!(Tansu);

impl Tansu {
    /// A broker with these options, ready for clients. The first one ever takes many minutes, because it is compiled.
    pub async fn start(options: TansuOptions) -> Result<Self> {
        let program = tokio::task::spawn_blocking(|| TANSU.program()).await;
        let program = program.map_err(|error| Error::new(format!("{}: {error}", TANSU.package)))??;
        started(async || Self::launch(&program, &options).await).await
    }

    async fn launch(program: &Path, options: &TansuOptions) -> Result<Self> {
        let (port, storage) = (Port::reserve()?, folder::temporary("tansu-storage")?);
        let broker = Self { process: process(program, &port, &storage, false)?, port, storage };
        // Its tools have no user, so they come before there is one.
        broker.wait_ready().await?;
        let address = broker.address();
        for (topic, partitions) in &options.topics {
            tool(program, ["topic", "create", "--broker", &address, topic, "--partitions", &partitions.to_string()]).await?;
        }
        let Some((name, password)) = &options.user else { return Ok(broker) };
        tool(program, ["user", "create", "--broker", &address, name, password]).await?;
        broker.kill()?;
        let process = process(program, &broker.port, &broker.storage, true)?;
        Ok(Self { process, ..broker })
    }

    async fn wait_ready(&self) -> Result<()> {
        let look = async || TcpStream::connect(self.socket_addr()).await.map(drop).map_err(|error| error.to_string());
        self.process.until("it listens", look).await
    }

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }
}

fn process(program: &Path, port: &Port, storage: &TempDir, authenticates: bool) -> Result<Process> {
    let address = format!("tcp://{}", port.address());
    // One slash more than usual: with three it would be below the folder in which the broker runs.
    let storage = format!("sqlite:///{}", storage.path().join("broker.db").display());
    let (address, storage) = (address.as_str(), storage.as_str());
    let fixed = ["broker", "--silent", "--listener-url", address, "--advertised-listener-url", address, "--storage-engine", storage];
    let mut arguments = fixed.map(str::to_owned).to_vec();
    if authenticates {
        arguments.push("--authentication".to_owned());
    }
    let title = format!("{} {}", TANSU.package, TANSU.version);
    let launch = Launch::new(title, PathBuf::from(program), arguments, folder::temporary("tansu")?);
    Launch { clients: ("tcp", port.address()), ..launch }.start()
}

async fn tool<const N: usize>(program: &Path, arguments: [&str; N]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    run_beside(command, ADVICE).await.map(drop)
}
