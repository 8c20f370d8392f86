//! A scripted HTTP server that answers as Consul does, and as the real one will not do on demand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it says to one request.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) status: u16,
    pub(crate) index: Option<u64>,
    pub(crate) known_leader: bool,
    pub(crate) last_contact: u64,
    pub(crate) body: String,
    pub(crate) after: Duration,
}

impl Said {
    /// A list of instances at an index.
    pub(crate) fn list(index: u64, body: impl Into<String>) -> Self {
        Self { status: 200, index: Some(index), known_leader: true, last_contact: 0, body: body.into(), after: Duration::ZERO }
    }

    pub(crate) fn refusal(status: u16, text: &str) -> Self {
        Self { status, index: None, ..Self::list(0, text) }
    }

    fn bytes(&self) -> Vec<u8> {
        let index = self.index.map(|index| format!("X-Consul-Index: {index}\r\n")).unwrap_or_default();
        format!(
            "HTTP/1.1 {} X\r\n{index}X-Consul-KnownLeader: {}\r\nX-Consul-LastContact: {}\r\nContent-Length: {}\r\n\r\n{}",
            self.status,
            self.known_leader,
            self.last_contact,
            self.body.len(),
            self.body
        )
        .into_bytes()
    }
}

/// One instance in a list, with a record in our format.
pub(crate) fn instance(id: &str, incarnation: u64) -> String {
    let record = format!(r#"{{\"schema\":1,\"incarnation\":\"{incarnation:016x}\",\"state\":\"active\"}}"#);
    format!(
        r#"{{"Node":{{"Node":"n","Datacenter":"dc1"}},"Service":{{"ID":"{id}","Service":"g","Meta":{{"shardwise_id":"{id}","shardwise_check":"c-{id}","shardwise_joined":"1","shardwise_record_0":"{record}"}}}},"Checks":null}}"#
    )
}

type Script = dyn Fn(&str) -> Said + Send + Sync;

/// The server; ends when dropped.
pub(crate) struct Fake {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Fake {
    /// Answers each request, `METHOD /path?query`, by the script.
    pub(crate) async fn start(script: impl Fn(&str) -> Said + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (script, asked): (Arc<Script>, Arc<Mutex<Vec<String>>>) = (Arc::new(script), Arc::default());
        let log = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&log)));
            }
        });
        Self { address, asked, task }
    }

    /// How many requests contained this text.
    pub(crate) fn asked(&self, text: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until the client goes, which is an error of reading or writing.
async fn serve(stream: TcpStream, script: Arc<Script>, log: Arc<Mutex<Vec<String>>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        stream.read_exact(&mut vec![0; length]).await?;
        let request = first.trim().trim_end_matches(" HTTP/1.1").to_owned();
        let said = script(&request);
        log.lock().unwrap().push(request);
        tokio::time::sleep(said.after).await;
        stream.write_all(&said.bytes()).await?;
    }
}
