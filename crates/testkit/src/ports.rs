//! Ports that no other test takes, not even while the server on them is down between a kill and a restart.
//!
//! They lie below the range from which the system gives out ports by itself, and each is reserved by a name in the abstract namespace
//! of Unix sockets: all processes of this network see it, and it is free again when its holder is gone, however that ended.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::error::{Error, Result};

const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// A port of 127.0.0.1 that is ours until it is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UnixDatagram,
}

impl Port {
    /// A port without a listener, for TCP and UDP.
    pub fn reserve() -> Result<Self> {
        (0..COUNT).find_map(|_| Self::try_reserve(candidate())).ok_or_else(|| Error::new("all ports for tests are taken"))
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let name = UnixAddr::from_abstract_name(format!("shardwise-testkit-port-{number}")).ok()?;
        let reservation = UnixDatagram::bind_addr(&name).ok()?;
        // A program that ignores reservations may listen there.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _reservation: reservation })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// With 127.0.0.1.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// The next port to try. Processes begin at different places, so that they seldom meet.
fn candidate() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap_or(0);
    FIRST + (process.wrapping_mul(31) % COUNT + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_again_when_it_is_free() {
        let port = Port::reserve().unwrap();
        assert!(Port::try_reserve(port.number()).is_none());
        let number = port.number();
        drop(port);
        assert!(Port::try_reserve(number).is_some());
    }

    #[test]
    fn a_port_in_use_is_not_given() {
        let taken = Port::reserve().unwrap();
        let number = taken.number();
        drop(taken);
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        assert!(Port::try_reserve(number).is_none());
    }
}
