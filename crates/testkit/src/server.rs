//! Common to all servers: they start on free ports, become ready, and are killed and paused as one process; and to clusters of them.

use std::ops::Deref;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::process::{PATIENCE, POLL_EVERY, Process};

/// How often a server is started on other ports before that counts as a failure.
const ATTEMPTS: u32 = 5;
/// How long a server may take to say whether it leads, before it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// A server, or several that form a cluster.
pub(crate) trait Startable: Sized {
    /// Whether one of its processes says in its log that its port was taken.
    fn lacks_port(&self) -> bool;

    /// Waits until clients are served.
    async fn ready(&self) -> Result<()>;
}

impl<S: Startable> Startable for Vec<S> {
    fn lacks_port(&self) -> bool {
        self.iter().any(Startable::lacks_port)
    }

    async fn ready(&self) -> Result<()> {
        try_join_all(self.iter().map(Startable::ready)).await.map(drop)
    }
}

/// Starts a server and waits until it is ready, and again on other ports where another program was quicker.
pub(crate) async fn started<T: Startable>(launch: impl AsyncFn() -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        let server = launch().await?;
        match server.ready().await {
            Err(_) if attempt < ATTEMPTS && server.lacks_port() => attempt += 1,
            ready => return ready.map(|()| server),
        }
    }
}

/// A server of a cluster, one of which leads.
pub(crate) trait Leads: Deref<Target = Process> {
    /// Whether it says of itself that it leads.
    async fn leads(&self) -> bool;
}

/// Waits until one of the servers leads, and gives back its place. One that is dead or paused does not.
pub(crate) async fn leader<S: Leads>(servers: &[S]) -> Result<usize> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for (index, server) in servers.iter().enumerate() {
            if timeout(SILENT_AFTER, server.leads()).await.unwrap_or(false) {
                return Ok(index);
            }
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    Err(Error::new(format!("no server of {} led within {} s", servers.len(), PATIENCE.as_secs())))
}

/// Kills all servers, and only then starts them again, with what they had stored or as if new.
pub(crate) fn relaunch<S: Leads>(servers: &[S], keep_data: bool) -> Result<()> {
    servers.iter().try_for_each(|server| server.kill())?;
    servers.iter().try_for_each(|server| server.relaunch(keep_data))
}

/// Makes a server with the field `process` and the method `ready` one of the kit: tests kill, pause and measure it as its process.
macro_rules! server {
    ($type:ty) => {
        impl std::ops::Deref for $type {
            type Target = $crate::process::Process;

            fn deref(&self) -> &Self::Target {
                &self.process
            }
        }

        impl $crate::server::Startable for $type {
            fn lacks_port(&self) -> bool {
                self.process.lacks_port()
            }

            async fn ready(&self) -> $crate::error::Result<()> {
                self.wait_ready().await
            }
        }
    };
}

pub(crate) use server;
