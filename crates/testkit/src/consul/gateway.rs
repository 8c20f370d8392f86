//! A network between Consul agents that can be cut, while programs still reach their HTTP APIs.
//!
//! Agents advertise their addresses to each other, and connect directly. So each listens on one address (`INSIDE`) and advertises another
//! (`OUTSIDE`), where our proxies listen.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use super::options::ConsulPorts;
use crate::error::Result;
use crate::proxy::TcpProxy;
use crate::proxy::udp::UdpProxy;

/// Where each agent listens, and the address that it advertises. Its ports are no other's.
pub(super) const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(super) const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// All gateways of one cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct GatewayNetwork(Arc<Mutex<Vec<Arc<Gateway>>>>);

/// The proxies before one agent.
#[derive(Debug)]
struct Gateway {
    /// For calls to the agent, if it is a server, and for gossip over connections.
    connections: [TcpProxy; 2],
    gossip: UdpProxy,
}

impl GatewayNetwork {
    fn gateways(&self) -> Vec<Arc<Gateway>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the gateway of an agent with these ports. It stands as long as the network.
    pub(super) async fn open(&self, ports: &ConsulPorts) -> Result<()> {
        let [calls, gossip] =
            [&ports.server, &ports.gossip].map(|port| [OUTSIDE, INSIDE].map(|address| SocketAddr::new(address, port.number())));
        let connections = [TcpProxy::between(calls[0], calls[1], None).await?, TcpProxy::between(gossip[0], gossip[1], None).await?];
        let gateway = Gateway { connections, gossip: UdpProxy::start(gossip[0], gossip[1]).await? };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(gateway));
        Ok(())
    }

    /// Silently cuts all agents off from each other.
    pub(super) fn cut(&self) {
        for gateway in self.gateways() {
            gateway.connections.iter().for_each(TcpProxy::cut_both);
            gateway.gossip.cut(true);
        }
    }

    pub(super) async fn heal(&self) -> Result<()> {
        for gateway in self.gateways() {
            for proxy in &gateway.connections {
                proxy.heal().await?;
            }
            gateway.gossip.cut(false);
        }
        Ok(())
    }
}
