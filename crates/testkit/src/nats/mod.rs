//! NATS with `JetStream`: one server, or several that form a cluster.

mod cluster;
mod operator;
mod wire;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::certs::{CertIdentity, ServerTls};
use crate::error::{Error, Result};
use crate::folder;
use crate::http;
use crate::ports::Port;
use crate::process::{Launch, Process};
use crate::proxy::TcpProxy;
use crate::server::{server, started};
use crate::servers;

pub use cluster::NatsCluster;
pub use operator::{NatsOperator, NatsUser};

const CONFIGURATION: &str = "nats.conf";

/// How a server is started. The default: `JetStream`, everybody may do everything, no TLS.
#[derive(Clone, Debug, Default)]
pub struct NatsOptions {
    user: Option<(String, String)>,
    tls: Option<ServerTls>,
    settings: Vec<String>,
    newest: bool,
    durable: bool,
    cuttable: bool,
}

/// The place of a server in its cluster.
#[derive(Clone, Debug)]
struct ClusterPlace {
    name: String,
    routes: Vec<String>,
    /// Where the others find it, be it by its configuration or by hearsay.
    advertised: SocketAddr,
}

/// The ports of one server; the last two only in a cluster.
#[derive(Debug)]
struct NatsPorts {
    clients: Port,
    routes: Option<Port>,
    monitor: Option<Port>,
}

impl NatsOptions {
    /// The newest version instead of the oldest that is supported.
    #[must_use]
    pub fn newest(mut self) -> Self {
        self.newest = true;
        self
    }

    /// Only this user with this password.
    #[must_use]
    pub fn with_user(mut self, user: &str, password: &str) -> Self {
        self.user = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Only with TLS, with this certificate.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(ServerTls { identity: identity.clone(), demands_certificates: false });
        self
    }

    /// The same, and only with a certificate that the same authority has signed.
    #[must_use]
    pub fn with_mutual_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(ServerTls { identity: identity.clone(), demands_certificates: true });
        self
    }

    /// A line of the server's configuration, such as `max_payload: 4096`.
    #[must_use]
    pub fn with_setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// Flushes before it acknowledges, which exclusive ownership needs.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Only in a cluster: the servers reach each other through proxies, which a test can cut. Proxies end with the runtime that starts
    /// them.
    #[must_use]
    pub fn with_cuttable_routes(mut self) -> Self {
        self.cuttable = true;
        self
    }

    fn write(&self, folder: &Path, ports: &NatsPorts, place: Option<&ClusterPlace>) -> Result<()> {
        let data = folder.join("data").display().to_string();
        let sync = if self.durable { ", sync_interval: always" } else { "" };
        let mut text = format!("listen: \"{}\"\njetstream {{ store_dir: {data:?}{sync} }}\n", ports.clients.address());
        if let (Some(place), Some(routes), Some(monitor)) = (place, &ports.routes, &ports.monitor) {
            let (name, all, listen, at) = (&place.name, place.routes.join(", "), routes.address(), place.advertised);
            let _ = writeln!(text, "server_name: {name:?}\nhttp: \"{}\"", monitor.address());
            let _ = writeln!(text, "cluster {{ name: \"tests\", listen: \"{listen}\", advertise: \"{at}\", routes: [{all}] }}");
        }
        // Writing to a text does not fail.
        if let Some((user, password)) = &self.user {
            let _ = writeln!(text, "authorization {{ user: {user:?}, password: {password:?} }}");
        }
        if let Some(ServerTls { identity, demands_certificates }) = &self.tls {
            let (certificate, key) = (identity.certificate().display().to_string(), identity.key().display().to_string());
            let clients = if *demands_certificates {
                format!(", ca_file: {:?}, verify: true", identity.authority().display().to_string())
            } else {
                String::new()
            };
            let _ = writeln!(text, "tls {{ cert_file: {certificate:?}, key_file: {key:?}{clients} }}");
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
    ports: NatsPorts,
    place: Option<ClusterPlace>,
    /// What the routes of others to it go through.
    route: Option<TcpProxy>,
    options: NatsOptions,
}

server!(Nats);

impl Nats {
    /// A server with these options, ready for clients.
    pub async fn start(options: NatsOptions) -> Result<Self> {
        started(async || Self::launch(&options, NatsPorts { clients: Port::reserve()?, routes: None, monitor: None }, None, None)).await
    }

    fn launch(options: &NatsOptions, ports: NatsPorts, place: Option<ClusterPlace>, route: Option<TcpProxy>) -> Result<Self> {
        let folder = folder::temporary("nats")?;
        options.write(folder.path(), &ports, place.as_ref())?;
        let arguments = vec!["-c".to_owned(), folder.path().join(CONFIGURATION).display().to_string()];
        let clients = (if options.tls.is_some() { "tls" } else { "nats" }, ports.clients.address());
        let server = if options.newest { &servers::NATS_NEWEST } else { &servers::NATS_OLDEST };
        let program = servers::home(server)?.join("usr/sbin/nats-server");
        let launch = Launch::new(place.as_ref().map_or("nats-server", |place| &*place.name), program, arguments, folder);
        let process = Launch { clients, ..launch }.start()?;
        Ok(Self { process, ports, place, route, options: options.clone() })
    }

    /// Waits until it greets clients and `JetStream` is there.
    async fn wait_ready(&self) -> Result<()> {
        let probe = async || {
            let mut stream = TcpStream::connect(self.socket_addr()).await.map_err(|error| error.to_string())?;
            let mut greeting = [0; 4];
            stream.read_exact(&mut greeting).await.map_err(|error| error.to_string())?;
            if greeting == *b"INFO" { Ok(()) } else { Err(String::from_utf8_lossy(&greeting).into_owned()) }
        };
        self.process.until("it greets", probe).await?;
        let Some(monitor) = &self.ports.monitor else { return Ok(()) };
        let probe = async || {
            let answer = http::get(monitor.address(), "/healthz").await.map_err(|error| error.to_string())?;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        };
        self.process.until("JetStream has a leader", probe).await
    }

    /// Publishes a message and gives back what answers it, such as `JetStream` to `$JS.API.STREAM.DELETE.KV_b`, or to a message that a
    /// stream has taken. Not over TLS.
    pub async fn request(&self, subject: &str, payload: &str) -> Result<String> {
        let mut login = json!({ "verbose": false, "pedantic": false });
        if let Some((user, password)) = &self.options.user {
            login["user"] = user.as_str().into();
            login["pass"] = password.as_str().into();
        }
        wire::request(self.socket_addr(), &login, subject, payload).await
    }

    /// Kills it if it runs, and starts it on the same ports with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }

    /// The same with other options, such as another password.
    pub async fn restart_with(&mut self, options: NatsOptions) -> Result<()> {
        options.write(self.folder(), &self.ports, self.place.as_ref())?;
        self.options = options;
        self.restart().await
    }
}
