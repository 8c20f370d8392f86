//! Addresses of servers, as the settings have them.

use std::net::Ipv6Addr;

use shardwise_discovery::settings::without_secrets;
use shardwise_discovery::valkey::ValkeyAddress;

/// The ways to write the scheme, and whether it stands for TLS.
const SCHEMES: [(&str, bool); 4] = [("redis", false), ("valkey", false), ("rediss", true), ("valkeys", true)];

/// Reads `redis://host:port`; the port may be missing. The error says what is wrong, as words that follow the name of the setting, and
/// repeats no secret.
pub(crate) fn parse(text: &str, default_port: u16) -> Result<ValkeyAddress, String> {
    let refused = |why: &str| format!("has {:?}: {why}", without_secrets(text));
    if text.contains('@') {
        // Not shown: there may be a password in it.
        return Err("contains a user; set discovery.valkey.username and discovery.valkey.password instead".to_owned());
    }
    let example = "write it as redis://host:6379, or rediss://host:6379 with TLS";
    let (scheme, rest) = text.trim().split_once("://").ok_or_else(|| refused(example))?;
    let (_, tls) = SCHEMES.into_iter().find(|(known, _)| *known == scheme).ok_or_else(|| refused(example))?;
    if rest.contains(['?', '#']) {
        return Err(refused("it must end with the port"));
    }
    let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(refused("it must end with the port; set discovery.valkey.database for the number of a database"));
    }
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, behind)) => {
            if host.parse::<Ipv6Addr>().is_err() {
                return Err(refused(example));
            }
            (host, behind.strip_prefix(':').or_else(|| behind.is_empty().then_some("")))
        }
        None => place.split_once(':').map_or((place, Some("")), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some("") if !place.ends_with(':') => Some(default_port),
        Some(port) => port.parse().ok().filter(|port| *port > 0),
        None => None,
    };
    let port = port.ok_or_else(|| refused(example))?;
    if host.is_empty() || host.contains(['[', ']', ' ', ':']) && host.parse::<Ipv6Addr>().is_err() {
        return Err(refused(example));
    }
    Ok(ValkeyAddress { tls, host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_say_whether_there_is_tls_and_a_port_may_be_missing() {
        for (text, tls, shown) in [
            ("redis://h", false, "h:6379"),
            ("valkey://h:1", false, "h:1"),
            ("rediss://h:1/", true, "h:1"),
            ("valkeys://[::1]", true, "[::1]:6379"),
            ("redis://[::1]:7000", false, "[::1]:7000"),
        ] {
            let address = parse(text, 6379).unwrap();
            assert_eq!((address.tls, address.to_string().as_str()), (tls, shown), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_without_a_secret() {
        for text in ["", "h:1", "http://h:1", "redis://", "redis://h:", "redis://h:0", "redis://h:99999", "redis://[h]:1", "redis://h:1:2"]
        {
            assert!(parse(text, 6379).unwrap_err().contains("write it as redis://"), "{text}");
        }
        assert!(parse("redis://h/3", 6379).unwrap_err().contains("discovery.valkey.database"));
        for text in ["redis://me:hush@h", "redis://h:1?password=hush", "redis://h:1#hush", "hush@h"] {
            assert!(!parse(text, 6379).unwrap_err().contains("hush"), "{text}");
        }
    }
}
