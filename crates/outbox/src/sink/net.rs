//! Server addresses of the form `user@host:port`, and why a server cannot be reached.

#[cfg(any(feature = "rabbitmq", feature = "redis"))]
use shardwise::discovery::tls::ConnectFailure;

use crate::{Error, ErrorKind, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerAddress {
    pub(super) tls: bool,
    pub(super) user: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
}

impl ServerAddress {
    /// Parses `scheme://user@host:port/path`; `schemes` are the plain one and the one with TLS, with their default ports.
    pub(super) fn parse(url: &str, sink: &str, schemes: [(&str, u16); 2]) -> Result<Self> {
        let wrong = |what: String| Error::new(ErrorKind::Settings, format!("the address of the {sink} sink {what}"));
        let [(plain, _), (secure, _)] = schemes;
        let found = schemes.iter().position(|(scheme, _)| url.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://")));
        let found = found.ok_or_else(|| wrong(format!("must begin with {plain}:// or {secure}://, as in {plain}://user@host")))?;
        let (scheme, port) = schemes[found];
        let rest = &url[scheme.len() + 3..];
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, place) = authority.rsplit_once('@').map_or((None, authority), |(user, place)| (Some(user), place));
        if user.is_some_and(|user| user.contains(':')) {
            return Err(wrong("has a password in it: put it into a file".into()));
        }
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, Some(port)),
            Some((host, behind)) => (host, behind.strip_prefix(':').and_then(|port| port.parse().ok())),
            None => place.split_once(':').map_or((place, Some(port)), |(host, port)| (host, port.parse().ok())),
        };
        let readable = !host.is_empty() && !host.contains(['?', '#', ' ']) && !path.contains(['?', '#']);
        match port.filter(|port| *port > 0 && readable) {
            Some(port) => Ok(Self { tls: found == 1, user: user.map(str::to_owned), host: host.to_owned(), port, path: path.to_owned() }),
            None => Err(wrong(format!("cannot be read: write {plain}://user@host:port"))),
        }
    }

    /// Host and port, for messages.
    #[cfg(any(feature = "kafka", feature = "rabbitmq", test))]
    pub(super) fn place(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }
}

/// The error for a connection of ours that failed; librdkafka makes its own. `server` is what and where, such as "Redis at host:6379".
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
pub(super) fn connect_error(server: &str, failure: ConnectFailure) -> Error {
    let (kind, text) = match failure {
        ConnectFailure::Unreachable(why) => (ErrorKind::Unavailable, format!("{server} cannot be reached: {why}")),
        ConnectFailure::File(error) => {
            let text = format!("TLS to {server} cannot be set up: sink_{} {}", error.file.setting(), error.of_setting());
            (ErrorKind::Settings, text)
        }
        ConnectFailure::NotTls => {
            (ErrorKind::Denied, format!("{server} does not speak TLS: write its address in sink without TLS, or turn TLS on at the server"))
        }
        ConnectFailure::SilentOnTls(after) => {
            (ErrorKind::Unavailable, format!("{server} accepts the connection but does not answer the TLS handshake within {after:?}"))
        }
        ConnectFailure::Certificate { why, advice } => {
            (ErrorKind::Denied, format!("the certificate of {server} {why}: {}", advice.with_setting("sink_ca_file")))
        }
        ConnectFailure::ClientCertificate(why) => {
            let text = format!("{server} does not accept this client's certificate ({why}): correct sink_cert_file and sink_key_file");
            (ErrorKind::Denied, text)
        }
        ConnectFailure::Handshake(why) => (ErrorKind::Denied, format!("TLS with {server} fails: {why}; check sink and sink_ca_file")),
    };
    Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMES: [(&str, u16); 2] = [("redis", 6379), ("rediss", 6380)];

    #[test]
    fn addresses_are_read_and_what_is_none_is_reported() {
        let address = ServerAddress::parse("rediss://me@db.example/3", "Redis", SCHEMES).unwrap();
        assert_eq!((address.tls, address.user.as_deref(), address.place().as_str()), (true, Some("me"), "db.example:6380"));
        assert_eq!(address.path, "3");
        let address = ServerAddress::parse("redis://[::1]:7000", "Redis", SCHEMES).unwrap();
        assert_eq!((address.host.as_str(), address.port, address.place().as_str()), ("::1", 7000, "[::1]:7000"));
        for (url, expected) in [
            ("http://host", "must begin with redis:// or rediss://, as in redis://user@host"),
            ("redis://", "cannot be read"),
            ("redis://host:port", "cannot be read"),
            ("redis://host:0", "cannot be read"),
            ("redis://host?db=1", "cannot be read"),
            ("redis://me:secret@host", "put it into a file"),
        ] {
            let error = ServerAddress::parse(url, "Redis", SCHEMES).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }
}
