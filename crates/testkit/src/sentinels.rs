//! Redis Sentinels: several, which watch one primary and its replicas.

use std::fmt::Write as _;
use std::net::SocketAddr;

use futures::future::try_join_all;

use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process};
use crate::redis::{Redis, RedisProgram, command, tls_settings};
use crate::server::{server, started};

/// The name of the primary.
const MASTER: &str = "main";
/// How long the primary may be silent before a Sentinel calls it down, and how long a failover may take, in milliseconds.
const DOWN_AFTER_MS: u32 = 1_000;
const FAILOVER_MS: u32 = 5_000;

/// Sentinels of one primary, which they know as `main`; killed when dropped.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    // Dropped first: the ports outlive the process.
    process: Process,
    _port: Port,
    /// Where the kit asks, if clients need TLS.
    plain_port: Option<Port>,
    /// What its line of the primary must contain before it is ready.
    expected: String,
    /// Its own password.
    password: Option<String>,
}

/// The passwords of the servers and of the Sentinels.
#[derive(Debug, Clone, Copy)]
struct SentinelPasswords<'a> {
    servers: &'a str,
    sentinels: &'a str,
}

server!(Sentinel);

impl Sentinels {
    /// So many Sentinels, a majority of which makes a failover; ready when all know each other and so many replicas of the primary. They
    /// speak TLS if it does, with its certificate, and demand certificates of clients if it does.
    pub async fn start(count: usize, primary: &Redis, replicas: usize) -> Result<Self> {
        Self::launch(count, primary, replicas, None).await
    }

    /// The same where the servers have one password and the Sentinels another.
    pub async fn start_guarded(count: usize, primary: &Redis, replicas: usize, servers: &str, sentinels: &str) -> Result<Self> {
        Self::launch(count, primary, replicas, Some(SentinelPasswords { servers, sentinels })).await
    }

    async fn launch(count: usize, primary: &Redis, replicas: usize, passwords: Option<SentinelPasswords<'_>>) -> Result<Self> {
        let sentinels = started(async || {
            let launch = |_| Sentinel::launch(count, primary, replicas, passwords);
            (0..count).map(launch).collect::<Result<Vec<_>>>()
        });
        Ok(Self { sentinels: sentinels.await? })
    }

    /// Where they listen, such as `redis://127.0.0.1:PORT`, or `rediss` with TLS.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| sentinel.address()).collect()
    }

    /// Kills one.
    pub fn kill(&self, number: usize) -> Result<()> {
        self.sentinel(number)?.kill()
    }

    fn sentinel(&self, number: usize) -> Result<&Sentinel> {
        self.sentinels.get(number).ok_or_else(|| Error::new("there is no such Sentinel"))
    }

    /// Has one of them make a replica the primary now, though the present one lives.
    pub async fn fail_over_by(&self, number: usize) -> Result<()> {
        self.sentinel(number)?.command(&["SENTINEL", "FAILOVER", MASTER]).await.map(drop)
    }

    /// Which primary one of them names.
    pub async fn named_by(&self, number: usize) -> Result<SocketAddr> {
        let line = self.sentinel(number)?.line().await?;
        primary_in(&line).ok_or_else(|| Error::new(format!("it names no primary: {line}")))
    }

    /// Waits until all of these name another primary than `former`, and gives back which.
    pub async fn primary_other_than(&self, former: SocketAddr) -> Result<SocketAddr> {
        let named = try_join_all(self.sentinels.iter().map(|sentinel| sentinel.primary_other_than(former))).await?;
        named.into_iter().next().ok_or_else(|| Error::new("there is no Sentinel"))
    }
}

impl Sentinel {
    fn launch(count: usize, primary: &Redis, replicas: usize, passwords: Option<SentinelPasswords<'_>>) -> Result<Self> {
        let (port, folder) = (Port::reserve()?, folder::temporary("sentinel")?);
        let (tls, primary) = (primary.tls(), primary.socket_addr());
        let plain_port = tls.map(|_| Port::reserve()).transpose()?;
        let configuration = folder.path().join("sentinel.conf");
        let mut text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor {MASTER} {} {} {}\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\nsentinel failover-timeout {MASTER} {FAILOVER_MS}\n",
            plain_port.as_ref().unwrap_or(&port).number(),
            folder.path().display(),
            primary.ip(),
            primary.port(),
            count / 2 + 1
        );
        // Writing to a text does not fail.
        for (name, value) in tls.iter().flat_map(|tls| tls_settings(tls, port.number())) {
            let _ = writeln!(text, "{name} {value}");
        }
        if let Some(SentinelPasswords { servers, sentinels }) = passwords {
            let _ = writeln!(text, "sentinel auth-pass {MASTER} {servers}\nrequirepass {sentinels}\nsentinel sentinel-pass {sentinels}");
        }
        std::fs::write(&configuration, text).map_err(Error::io(configuration.display()))?;
        let program = RedisProgram::find(false, &folder)?;
        let arguments = vec![configuration.display().to_string(), "--sentinel".to_owned()];
        let launch = program.launch(arguments, folder);
        let process = Launch { clients: (if tls.is_some() { "rediss" } else { "redis" }, port.address()), ..launch }.start()?;
        let expected = format!("status=ok,address={primary},slaves={replicas},sentinels={count}");
        let password = passwords.map(|passwords| passwords.sentinels.to_owned());
        Ok(Self { process, _port: port, plain_port, expected, password })
    }

    async fn command(&self, words: &[&str]) -> Result<String> {
        let login = self.password.as_deref().map(|password| vec!["AUTH", password]);
        let to = self.plain_port.as_ref().map_or_else(|| self.socket_addr(), Port::address);
        command(to, login.as_deref(), words).await
    }

    /// What it says of the primary, such as `master0:name=main,status=ok,address=127.0.0.1:6379,slaves=2,sentinels=3`.
    async fn line(&self) -> Result<String> {
        let info = self.command(&["INFO", "sentinel"]).await?;
        Ok(info.lines().find(|line| line.starts_with("master0:")).unwrap_or_default().to_owned())
    }

    async fn primary_other_than(&self, former: SocketAddr) -> Result<SocketAddr> {
        let probe = async || {
            let line = self.line().await.map_err(|error| error.to_string())?;
            primary_in(&line).filter(|address| *address != former).ok_or(line)
        };
        self.process.until("it names another primary", probe).await
    }

    async fn wait_ready(&self) -> Result<()> {
        let probe = async || {
            let line = self.line().await.map_err(|error| error.to_string())?;
            if line.contains(&self.expected) { Ok(()) } else { Err(line) }
        };
        self.process.until("it knows the others", probe).await
    }
}

/// The primary's address in a Sentinel's line of it.
fn primary_in(line: &str) -> Option<SocketAddr> {
    line.split(',').find_map(|part| part.strip_prefix("address=")?.parse().ok())
}
