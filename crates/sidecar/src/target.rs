//! The parsed and checked address of the local worker.

use std::net::IpAddr;
use std::str::FromStr as _;

use axum::http::uri::{Authority, Uri};

/// An address of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The prefix of every path.
    pub(crate) prefix: String,
}

impl Target {
    /// Parses the address without user, query and fragment; `None` if it is invalid.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority: &Authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if uri.query().is_some() || host.is_empty() {
            return None;
        }
        let port = port_of(authority.as_str(), if tls { 443 } else { 80 })?;
        Some(Self { tls, host, port, prefix: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Host and port, for the header `host`.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }

    /// Whether the address is on this machine, as a loopback address or `localhost`, without TLS.
    pub(crate) fn is_beside(&self) -> bool {
        !self.tls && (self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
    }
}

/// The port in the text, or the default one; `None` if the text is invalid.
pub(crate) fn port_of(text: &str, usual: u16) -> Option<u16> {
    let authority = Authority::from_str(text).ok()?;
    // The URI parser treats an invalid or too large port as absent.
    match authority.as_str().strip_prefix(authority.host())? {
        "" => Some(usual),
        named => named.strip_prefix(':')?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_a_port() {
        let beside = Target::parse("http://127.0.0.1:8000/hooks/").unwrap();
        assert_eq!((beside.port, beside.prefix.as_str(), beside.is_beside()), (8000, "/hooks", true));
        assert!(Target::parse("http://[::1]:80").unwrap().is_beside() && Target::parse("http://localhost").unwrap().is_beside());
        for other in ["https://127.0.0.1:1", "http://10.0.0.7:1", "http://localhost.evil.example", "http://[fd00::7]:1"] {
            assert!(!Target::parse(other).unwrap().is_beside(), "{other}");
        }
        for bad in [
            "",
            "127.0.0.1:80",
            "ftp://x:1",
            "http://u@127.0.0.1",
            "http://127.0.0.1@evil.example:1",
            "http://x:99999",
            "http://x/?a=b",
            "http:///x",
        ] {
            assert_eq!(Target::parse(bad), None, "{bad}");
        }
    }
}
