//! A network between Consul agents in which one of them can be cut off, while programs still reach its HTTP API.
//!
//! Agents advertise their addresses to each other, and connect directly. So each listens on its own address (`inside`) and
//! advertises another (`outside`), where our proxies listen. An agent's calls to servers and its gossip come from its inside
//! address, by which the proxies of the others recognize it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use super::options::ConsulPorts;
use crate::error::Result;
use crate::proxy::TcpProxy;
use crate::proxy::udp::UdpProxy;

/// All gateways of one cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct GatewayNetwork(Arc<Mutex<Vec<Arc<Gateway>>>>);

/// The proxies before one agent.
#[derive(Debug)]
pub(super) struct Gateway {
    inside: IpAddr,
    /// Calls to the agent, if it is a server; agents that are none refuse them themselves.
    calls: TcpProxy,
    gossip: TcpProxy,
    datagrams: UdpProxy,
}

/// Where the agent with these ports listens, and the address that it advertises.
pub(super) fn addresses(ports: &ConsulPorts) -> (IpAddr, IpAddr) {
    let [high, low] = ports.gossip.number().to_be_bytes();
    (Ipv4Addr::new(127, 20, high, low).into(), Ipv4Addr::new(127, 21, high, low).into())
}

impl GatewayNetwork {
    fn gateways(&self) -> Vec<Arc<Gateway>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the gateway of an agent with these ports. It stands as long as the network.
    pub(super) async fn open(&self, ports: &ConsulPorts) -> Result<()> {
        let (inside, outside) = addresses(ports);
        let (calls, gossip) = (ports.server.number(), ports.gossip.number());
        let pair = |port| (SocketAddr::new(outside, port), SocketAddr::new(inside, port));
        let ((calls_outside, calls_inside), (gossip_outside, gossip_inside)) = (pair(calls), pair(gossip));
        let gateway = Gateway {
            inside,
            calls: TcpProxy::between(calls_outside, calls_inside).await?,
            gossip: TcpProxy::between(gossip_outside, gossip_inside).await?,
            datagrams: UdpProxy::start(gossip_outside, gossip_inside).await?,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(gateway));
        Ok(())
    }

    /// Silently cuts the agent with these ports off from all others.
    pub(super) fn cut_off(&self, ports: &ConsulPorts) {
        let (agent, _) = addresses(ports);
        for gateway in self.gateways() {
            // Connections for gossip do not say whose they are. The others have their datagrams, which is enough for a while.
            gateway.gossip.cut_both();
            if gateway.inside == agent {
                gateway.calls.cut_both();
                gateway.datagrams.cut();
            } else {
                gateway.calls.cut_from(agent);
                gateway.datagrams.cut_from(agent);
            }
        }
    }

    pub(super) async fn heal(&self) -> Result<()> {
        for gateway in self.gateways() {
            gateway.calls.heal().await?;
            gateway.gossip.heal().await?;
            gateway.datagrams.heal();
        }
        Ok(())
    }
}
