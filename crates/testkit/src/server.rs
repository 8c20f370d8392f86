//! Common to all servers: they start on free ports, become ready, and are killed and paused as one process.

use crate::error::Result;
use crate::process::Process;

/// How often a server is started on other ports before that counts as a failure.
const ATTEMPTS: u32 = 5;
/// What a server's log says when another program listens on its port; some write it with a capital.
const TAKEN: &str = "ddress already in use";

/// A server, or several that form a cluster.
pub(crate) trait Startable: Sized {
    /// Whether one of its processes says in its log that its port was taken.
    fn lacks_port(&self) -> bool;

    /// Waits until clients are served.
    async fn ready(&self) -> Result<()>;
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

impl Process {
    pub(crate) fn lacks_port(&self) -> bool {
        self.said(TAKEN)
    }
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
