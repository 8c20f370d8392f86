//! The address at which requests to this member arrive.

use std::net::SocketAddr;

use super::ADDRESS_KEY;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::OwnershipContext;

/// How an address without TLS begins, and one with.
pub(super) const PLAIN: &str = "tcp://";
pub(super) const SECURED: &str = "tls://";

/// Publishes the address of requests and returns it as the others see it.
pub(super) fn arrive_at(context: &OwnershipContext, bound: SocketAddr, tls: bool) -> Result<String> {
    let everywhere = bound.ip().is_unspecified();
    // A certificate is for a name, and a wildcard address is not one that others could call.
    let named = if tls || everywhere { context.advertised.at_host(bound.port()) } else { None };
    if named.is_none() && everywhere {
        let message = format!(
            "requests to this worker arrive at {bound}, and others cannot know where that is: set instance.address and instance.port"
        );
        return Err(Error::new(ErrorKind::Settings, message));
    }
    let address = format!("{}{}", if tls { SECURED } else { PLAIN }, named.unwrap_or_else(|| bound.to_string()));
    context.advertised.show(ADDRESS_KEY, &address)?;
    Ok(address)
}
