//! Several servers that form a cluster.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::Value;
use tokio::time::timeout;

use super::{ClusterPlace, Nats, NatsOptions, NatsPorts};
use crate::error::{Error, Result};
use crate::http;
use crate::ports::Port;
use crate::process::{PATIENCE, POLL_EVERY};
use crate::proxy::TcpProxy;
use crate::server::started;

/// How long a server may take to say whether it leads, before it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Servers of one cluster; killed when dropped.
#[derive(Debug)]
pub struct NatsCluster {
    servers: Vec<Nats>,
}

impl NatsCluster {
    /// Servers with these options, ready for clients.
    pub async fn start(count: usize, options: NatsOptions) -> Result<Self> {
        Ok(Self { servers: started(async || launch(&options, count).await).await? })
    }

    /// All servers, dead or alive.
    pub fn servers(&self) -> &[Nats] {
        &self.servers
    }

    /// Where clients connect, for each server.
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address()).collect()
    }

    /// Waits until one server leads that stream, and gives back its place in [`NatsCluster::servers`]. One that is dead or paused does not.
    pub async fn leader_of(&self, stream: &str) -> Result<usize> {
        self.leader(stream, Led::Stream).await
    }

    /// The same for a consumer of that stream, of several for any.
    pub async fn leader_of_consumer(&self, stream: &str) -> Result<usize> {
        self.leader(stream, Led::Consumer).await
    }

    async fn leader(&self, stream: &str, what: Led) -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for (index, server) in self.servers.iter().enumerate() {
                if timeout(SILENT_AFTER, leads(server, stream, what)).await.unwrap_or(false) {
                    return Ok(index);
                }
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        Err(Error::new(format!("no server led the {what:?} of {stream} within {} s", PATIENCE.as_secs())))
    }

    /// The routes that other servers have opened to each server, if they go through proxies ([`NatsOptions::with_cuttable_routes`]).
    pub fn routes(&self) -> impl Iterator<Item = &TcpProxy> {
        self.servers.iter().filter_map(|server| server.route.as_ref())
    }

    /// Kills all servers, and only then starts them again with what they had stored; gives back when they are ready.
    pub async fn restart(&self) -> Result<()> {
        self.servers.iter().try_for_each(|server| server.kill())?;
        self.servers.iter().try_for_each(|server| server.relaunch(true))?;
        try_join_all(self.servers.iter().map(Nats::wait_ready)).await.map(drop)
    }
}

/// What a server may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Led {
    Stream,
    Consumer,
}

/// Whether a server says of itself that it leads the stream, or a consumer of it.
async fn leads(server: &Nats, stream: &str, what: Led) -> bool {
    let (Some(place), Some(monitor)) = (&server.place, &server.ports.monitor) else { return false };
    let path = "/jsz?accounts=true&streams=true&consumers=true";
    let answer = match http::get(monitor.address(), path).await {
        Ok(answer) => answer.success("GET", path).unwrap_or_default(),
        Err(_) => return false,
    };
    let listed = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let streams = listed(&answer, "account_details").into_iter().flat_map(|account| listed(&account, "stream_detail"));
    let mut streams = streams.filter(|detail| detail["name"] == stream);
    let is_led = |detail: &Value| detail["cluster"]["leader"] == place.name.as_str();
    match what {
        Led::Stream => streams.any(|detail| is_led(&detail)),
        Led::Consumer => streams.any(|detail| listed(&detail, "consumer_detail").iter().any(is_led)),
    }
}

async fn launch(options: &NatsOptions, count: usize) -> Result<Vec<Nats>> {
    let reserve = || -> Result<NatsPorts> {
        Ok(NatsPorts { clients: Port::reserve()?, routes: Some(Port::reserve()?), monitor: Some(Port::reserve()?) })
    };
    let ports = (0..count).map(|_| reserve()).collect::<Result<Vec<_>>>()?;
    let mut ways = Vec::new();
    for port in ports.iter().filter_map(|ports| ports.routes.as_ref()) {
        ways.push(if options.cuttable { Some(TcpProxy::start(port.address()).await?) } else { None });
    }
    let own = ports.iter().filter_map(|ports| ports.routes.as_ref()).map(Port::address);
    let at: Vec<_> = own.zip(&ways).map(|(own, way)| way.as_ref().map_or(own, TcpProxy::address)).collect();
    let routes: Vec<_> = at.iter().map(|at| format!("\"nats://{at}\"")).collect();
    let place = |index: usize, at| ClusterPlace { name: format!("nats-{}", index + 1), routes: routes.clone(), advertised: at };
    let servers = ports.into_iter().zip(ways).zip(at).enumerate();
    servers.map(|(index, ((ports, way), at))| Nats::launch(options, ports, Some(place(index, at)), way)).collect()
}
