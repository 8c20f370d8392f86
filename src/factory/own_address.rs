//! `instance.address = "auto"`: this machine's address towards the backend, as the kernel chooses it. It knows no scheduler.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use shardwise_core::Member;

use crate::error::{Error, ErrorKind, Result};
use crate::settings::ADDRESS_AUTO;

/// How long the system may look for the name of the backend's server.
const FOUND_WITHIN: Duration = Duration::from_secs(5);
/// The most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Any port would do: nothing is sent.
const PORT: u16 = 9;

/// Replaces `auto` in the member's address by what `own` finds.
pub(super) fn fill(member: &mut Member, own: impl FnOnce() -> Result<IpAddr>) -> Result<()> {
    if let Some(address) = member.address.as_mut().filter(|address| address.host == ADDRESS_AUTO) {
        address.host = own()?.to_string();
    }
    Ok(())
}

/// The error where the backend's server is not known.
pub(super) fn unknown() -> Error {
    let message = "instance.address is \"auto\", and the settings do not say where the program's own backend is: set the address itself";
    Error::new(ErrorKind::Settings, message)
}

/// The address from which this machine reaches that host; its own one where there is no server.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if the host is not found, or no network leads there.
pub(super) fn towards(server: Option<&str>) -> Result<IpAddr> {
    let Some(host) = server else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    let refused = |why: String| {
        let message = format!("instance.address is \"auto\", and this machine's address towards the backend is not known: {why}");
        Error::new(ErrorKind::Unavailable, message)
    };
    let mut failed = format!("{host:?} has no address");
    for address in found(host).map_err(refused)? {
        match source(address) {
            Ok(own) => {
                if own.is_loopback() {
                    tracing::warn!(%own, "instance.address is \"auto\", and the backend is on this machine: no other machine reaches this worker there; if there are others, set the address itself");
                }
                return Ok(own);
            }
            Err(error) => failed = format!("{address}: {error}"),
        }
    }
    Err(refused(failed))
}

/// The addresses of a host.
fn found(host: &str) -> std::result::Result<Vec<IpAddr>, String> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let (name, (sender, answer)) = (host.to_owned(), mpsc::sync_channel(1));
    let resolve = move || {
        let addresses = (name.as_str(), PORT).to_socket_addrs();
        // The caller may have given up waiting.
        let _ = sender.send(addresses.map(|all| all.map(|address| address.ip()).take(ADDRESSES_MAX).collect()));
    };
    // A thread, because nothing else bounds how long the system looks.
    std::thread::Builder::new().name("own-address".to_owned()).spawn(resolve).map_err(|error| error.to_string())?;
    match answer.recv_timeout(FOUND_WITHIN) {
        Ok(addresses) => addresses.map_err(|error| format!("{host:?}: {error}")),
        Err(_) => Err(format!("{host:?} is not found within {FOUND_WITHIN:?}")),
    }
}

/// The source address that the kernel chooses for that destination.
fn source(destination: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    // For UDP this only looks at the routes.
    socket.connect(SocketAddr::new(destination, PORT))?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use shardwise_core::{Address, InstanceId};

    use super::*;

    #[test]
    fn a_backend_on_this_machine_is_reached_from_this_machine() {
        assert_eq!(towards(None).unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(towards(Some("127.0.0.1")).unwrap(), Ipv4Addr::LOCALHOST);
        assert!(towards(Some("localhost")).unwrap().is_loopback());
    }

    #[test]
    fn elsewhere_it_is_an_address_of_this_machine_or_it_is_said_why_not() {
        // Documentation's own network (RFC 5737): whether a route leads there depends on the machine.
        match towards(Some("192.0.2.1")) {
            Ok(own) => assert!(!own.is_unspecified() && own.to_string() != "192.0.2.1", "{own}"),
            Err(error) => assert!(error.is_retryable() && error.to_string().contains("192.0.2.1"), "{error}"),
        }
        let error = towards(Some("nowhere.invalid")).unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("nowhere.invalid"), "{error}");
    }

    #[test]
    fn only_auto_is_replaced() {
        let mut member = Member::named(InstanceId::new("a").unwrap());
        fill(&mut member, || Err(unknown())).unwrap();
        member.address = Some(Address { host: "worker-1".into(), port: 7 });
        fill(&mut member, || Err(unknown())).unwrap();
        member.address = Some(Address { host: ADDRESS_AUTO.into(), port: 7 });
        assert_eq!(fill(&mut member, || Err(unknown())).unwrap_err().kind(), ErrorKind::Settings);
        fill(&mut member, || towards(None)).unwrap();
        assert_eq!(member.address.unwrap().to_string(), "127.0.0.1:7");
    }
}
