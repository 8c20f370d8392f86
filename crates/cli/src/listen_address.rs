//! The address of `--listen`.

use std::net::{Ipv4Addr, SocketAddr};

/// An address with a port, or only a port, which listens on loopback.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, &'static str> {
    let port = text.strip_prefix(':').unwrap_or(text).parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let wrong = "write a port, such as 9600, for this machine alone, or an IP address and a port, such as 0.0.0.0:9600";
    port.ok().or_else(|| text.parse().ok()).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_for_this_machine() {
        for (text, expected) in
            [("9600", "127.0.0.1:9600"), (":9600", "127.0.0.1:9600"), ("0.0.0.0:9600", "0.0.0.0:9600"), ("[::1]:1", "[::1]:1")]
        {
            assert_eq!(listen_address(text), Ok(expected.parse().unwrap()), "{text}");
        }
        for text in ["", "localhost:9600", "127.0.0.1", "70000"] {
            assert!(listen_address(text).unwrap_err().starts_with("write a port"), "{text}");
        }
    }
}
