//! etcd members: one alone, or with others.

mod options;

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub use options::EtcdOptions;
use options::Ports;

use crate::error::{Error, Result};
use crate::http::Request;
use crate::process::{ATTEMPTS, Process, TAKEN};
use crate::servers;

/// One running etcd member; killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    // Dropped first: the folder and the ports outlive the process.
    process: Process,
    ports: Ports,
    folder: TempDir,
}

impl Etcd {
    /// A member alone, with its own data, ready for reads and writes.
    pub async fn single() -> Result<Self> {
        Self::start(EtcdOptions::default()).await
    }

    /// A member alone with these options, ready for reads and writes.
    pub async fn start(options: EtcdOptions) -> Result<Self> {
        let mut attempt = 1;
        loop {
            let ports = Ports::reserve()?;
            let etcd = Self::launch(&options, ports)?;
            match etcd.ready().await {
                Err(_) if attempt < ATTEMPTS && etcd.process.said(TAKEN) => attempt += 1,
                ready => return ready.map(|()| etcd),
            }
        }
    }

    /// Starts the process and does not wait for it.
    fn launch(options: &EtcdOptions, ports: Ports) -> Result<Self> {
        let program = servers::program("etcd")?;
        let folder = tempfile::Builder::new().prefix("shardwise-etcd-").tempdir().map_err(Error::io("a folder for etcd"))?;
        let arguments = options.arguments(folder.path(), &ports);
        let process = Process::new(format!("etcd {}", options.name), program, arguments, folder.path().join("log"));
        process.start()?;
        Ok(Self { process, ports, folder })
    }

    /// Waits until the member knows a leader and answers consistent reads.
    async fn ready(&self) -> Result<()> {
        let request = Request { method: "GET", path: "/health", header: None, body: None };
        self.process
            .until("it is healthy", async || {
                let answer = request.send(self.ports.metrics.address()).await.map_err(|error| error.to_string())?;
                if answer.status == 200 { Ok(()) } else { Err(answer.body) }
            })
            .await
    }

    /// Where clients connect, as `http://127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("http://{}", self.socket_addr())
    }

    /// Where clients connect, for a proxy.
    pub fn socket_addr(&self) -> SocketAddr {
        self.ports.client.address()
    }

    /// SIGKILL: no farewell to anybody.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Kills it if it runs, and starts it on the same ports, with what it had stored or as if new (revisions begin again at 1); gives
    /// back when it is ready.
    pub async fn restart(&self, keep_data: bool) -> Result<()> {
        self.process.kill()?;
        if !keep_data {
            let data = self.folder.path().join("data");
            std::fs::remove_dir_all(&data).map_err(Error::io(data.display()))?;
        }
        self.process.start()?;
        self.ready().await
    }

    /// SIGSTOP: connections stay, answers do not come.
    pub fn pause(&self) -> Result<()> {
        self.process.signal(Signal::SIGSTOP)
    }

    /// SIGCONT, after [`Etcd::pause`].
    pub fn resume(&self) -> Result<()> {
        self.process.signal(Signal::SIGCONT)
    }

    /// A call of the API, in JSON, such as `("/v3/kv/range", &json!({ "key": base64 }))`.
    ///
    /// # Errors
    ///
    /// No answer, or one with a status other than 200.
    pub async fn api(&self, path: &str, body: &Value) -> Result<Value> {
        let request = Request { method: "POST", path, header: None, body: Some(body) };
        request.send(self.socket_addr()).await?.success("POST", path)
    }
}
