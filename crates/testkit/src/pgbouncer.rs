//! PgBouncer: a pooler in front of one PostgreSQL server, in transaction mode.

use std::path::Path;

use crate::account;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::postgres::{Database, Postgres};
use crate::process::{Launch, Process};
use crate::server::{server, started};
use crate::servers::{self, PGBOUNCER};

const CONFIGURATION: &str = "pgbouncer.ini";
/// The connections to the server, fewer than the clients have, so that they share them.
const CONNECTIONS: u32 = 4;

/// One running PgBouncer, which gives each transaction any of its connections; gone when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    // Dropped first: the port outlives the process.
    process: Process,
    _port: Port,
}

server!(PgBouncer);

impl PgBouncer {
    /// A pooler for all databases of this server. Everybody on this machine may do everything, as there.
    pub async fn start(postgres: &Postgres) -> Result<Self> {
        started(async || Self::launch(postgres)).await
    }

    fn launch(postgres: &Postgres) -> Result<Self> {
        let (port, home, user) = (Port::reserve()?, servers::home(&PGBOUNCER)?, account::other_than_root()?);
        let folder = folder::temporary("pgbouncer")?;
        let home = account::settle(user.as_ref(), &home, folder.path())?;
        configure(folder.path(), port.number(), postgres)?;
        let arguments = vec![folder.path().join(CONFIGURATION).display().to_string()];
        let launch = Launch::new(PGBOUNCER.title(), home.join(PGBOUNCER.programs[0]), arguments, folder);
        // The package has those that the system may lack.
        let environment = vec![("LD_LIBRARY_PATH", servers::libraries(&home).display().to_string())];
        let process = Launch { environment, user, clients: ("postgres", port.address()), ..launch }.start()?;
        Ok(Self { process, _port: port })
    }

    async fn wait_ready(&self) -> Result<()> {
        let probe = async || tokio::net::TcpStream::connect(self.socket_addr()).await.map(drop).map_err(|error| error.to_string());
        self.process.until("it listens", probe).await
    }

    /// How clients connect to that database through it.
    pub fn url(&self, database: &Database) -> String {
        database.url_at(self.socket_addr())
    }
}

fn configure(folder: &Path, port: u16, postgres: &Postgres) -> Result<()> {
    let server = postgres.socket_addr();
    let users = folder.join("users.txt");
    let text = format!(
        "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {CONNECTIONS}\nmax_client_conn = 200\n",
        server.ip(),
        server.port(),
        users.display()
    );
    for (path, text) in [(folder.join(CONFIGURATION), text.as_str()), (users, "\"postgres\" \"\"\n\"worker\" \"\"\n")] {
        std::fs::write(&path, text).map_err(Error::io(path.display()))?;
    }
    Ok(())
}
