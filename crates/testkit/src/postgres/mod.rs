//! PostgreSQL: a server alone, and databases in it for a test each.

mod options;
mod wire;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;
use nix::unistd::User;
use tokio::sync::OnceCell;

pub use options::PostgresOptions;

use crate::account;
use crate::command::run_beside;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process, dying_with_parent};
use crate::server::{server, started};
use crate::servers;
use crate::usage::Usage;

/// The role that may do everything, and the database that is always there.
const SUPERUSER: &str = "postgres";
const ALWAYS_THERE: &str = "postgres";

/// One running PostgreSQL server; gone when dropped.
#[derive(Debug)]
pub struct Postgres {
    // Dropped first: the port outlives the process.
    process: Process,
    _port: Port,
    databases: AtomicU32,
    options: PostgresOptions,
}

/// A new and empty database of a server. It lasts as long as the server, which lasts as long as this.
#[derive(Clone, Debug)]
pub struct Database {
    server: Arc<Postgres>,
    name: String,
}

server!(Postgres);

impl Postgres {
    /// A server of one's own with these options, ready for statements.
    pub async fn start(options: PostgresOptions) -> Result<Arc<Self>> {
        started(async || Self::launch(&options, None).await).await.map(Arc::new)
    }

    /// The server of the newest version that the tests of one program share.
    pub async fn shared() -> Result<Arc<Self>> {
        static SHARED: OnceCell<Arc<Postgres>> = OnceCell::const_new();
        SHARED.get_or_try_init(async || Self::start(PostgresOptions::default()).await).await.cloned()
    }

    async fn launch(options: &PostgresOptions, copy_of: Option<&Path>) -> Result<Self> {
        let port = Port::reserve()?;
        let server = options.server();
        let (home, user) = (servers::home(&server)?, account::other_than_root()?);
        let folder = folder::temporary("postgres")?;
        let home = account::settle(user.as_ref(), &home, folder.path())?;
        let arguments = options.arguments(folder.path(), port.number());
        options.write_files(folder.path(), user.as_ref())?;
        match copy_of {
            None => init(&home.join("bin/initdb"), user.as_ref(), folder.path()).await?,
            Some(data) => copy(data, folder.path()).await?,
        }
        let (clients, launch) = (("postgres", port.address()), Launch::new(server.title(), home.join("bin/postgres"), arguments, folder));
        // Killed by SIGKILL it would leave shared memory behind, of which the kernel has only so many pieces.
        let process = Launch { clients, farewell: Signal::SIGQUIT, user, ..launch }.start()?;
        Ok(Self { process, _port: port, databases: AtomicU32::new(1), options: options.clone() })
    }

    async fn wait_ready(&self) -> Result<()> {
        let probe = async || self.execute("SELECT 1").await.map(drop).map_err(|error| error.to_string());
        self.process.until("it answers", probe).await
    }

    /// A standby that follows this server at that address, where a proxy can make it lag, and may be read; `SELECT pg_promote()` makes it
    /// one that is written. This server is restarted for it.
    pub async fn standby(&self, address: SocketAddr) -> Result<Arc<Self>> {
        let source = format!("host={} port={} user={SUPERUSER}", address.ip(), address.port());
        let options = self.options.clone().with_setting("primary_conninfo", source);
        self.kill()?;
        let standby = Self::launch(&options, Some(&self.folder().join("data"))).await;
        self.restart().await?;
        let standby = standby?;
        standby.wait_ready().await?;
        Ok(Arc::new(standby))
    }

    /// A new and empty database in UTF-8.
    pub async fn database(self: &Arc<Self>) -> Result<Database> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(Database { server: self.clone(), name })
    }

    /// Runs statements, separated by semicolons, with all rights and in no test's database; gives back rows as text.
    pub async fn execute(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        wire::execute(self.socket_addr(), SUPERUSER, ALWAYS_THERE, sql).await
    }

    /// The resource use of all its processes since each was started; connections that have ended are not in it.
    pub fn usage(&self) -> Result<Usage> {
        self.usage_of_all()
    }

    /// Stops every process of the server: connections stay, answers do not come. [`Process::pause`] alone stops only the one that listens.
    pub fn freeze(&self) -> Result<()> {
        self.pause()?;
        self.signal_children(Signal::SIGSTOP)
    }

    /// Ends [`Postgres::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.signal_children(Signal::SIGCONT)?;
        self.resume()
    }

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }
}

impl Database {
    /// How clients connect, with all rights: `postgres://postgres@127.0.0.1:PORT/NAME`.
    pub fn url(&self) -> String {
        self.url_at(self.server.socket_addr())
    }

    /// The same by way of a proxy at that address.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://{SUPERUSER}@{address}/{}", self.name)
    }

    /// Runs statements, separated by semicolons, with all rights; gives back rows as text.
    pub async fn execute(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        wire::execute(self.server.socket_addr(), SUPERUSER, &self.name, sql).await
    }

    /// The same database on another server, such as a standby.
    #[must_use]
    pub fn on(&self, server: &Arc<Postgres>) -> Self {
        Self { server: server.clone(), name: self.name.clone() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server that it is in.
    pub fn server(&self) -> &Arc<Postgres> {
        &self.server
    }
}

/// Copies a stopped server's data, owners included, and marks the copy as a standby.
async fn copy(data: &Path, folder: &Path) -> Result<()> {
    let copy = folder.join("data");
    let mut command = Command::new("cp");
    command.arg("-a").args([data, &copy]);
    run_beside(command, "there must be room for a copy of the server").await?;
    // Of the stopped server's process; there is none in the copy.
    let _ = std::fs::remove_file(copy.join("postmaster.pid"));
    std::fs::write(copy.join("standby.signal"), "").map_err(Error::io(copy.display()))
}

/// Lays out the server's folder; takes about a second.
async fn init(initdb: &Path, user: Option<&User>, folder: &Path) -> Result<()> {
    let mut command = dying_with_parent(Signal::SIGKILL, user, initdb);
    command.arg("--pgdata").arg(folder.join("data")).args(["--username", SUPERUSER, "--auth", "trust", "--no-sync"]);
    command.args(["--encoding", "UTF8", "--locale", "C"]);
    run_beside(command, "initdb is started by setpriv, of the package util-linux").await.map(drop)
}
