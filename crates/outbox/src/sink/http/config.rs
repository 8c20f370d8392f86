//! A webhook's address, and how to call it.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::Url;
use secrecy::SecretString;
use shardwise::discovery::settings::is_this_machine;

use super::super::{Mode, Template, TlsFiles};
use super::address::{is_public, refused};
use super::signature::Signer;
use crate::{Error, ErrorKind, Result, secret};

/// How an [`HttpSink`](super::HttpSink) calls a webhook. `Debug` shows no secret.
#[derive(Clone)]
pub struct HttpConfig {
    pub(super) url: Template,
    pub(super) origin: String,
    pub(super) source: String,
    pub(super) signer: Option<Signer>,
    pub(super) token: Option<SecretString>,
    pub(super) tls_needed: bool,
    host: String,
    /// How an event is encoded: structured by default, because a signature covers the body and no headers.
    pub mode: Mode,
    /// The trusted CA, and this client's own certificate.
    pub tls: TlsFiles,
    /// The timeout of one request, from connecting to the end of the answer: 15 s by default, and at most 20 s.
    pub timeout: Duration,
    /// Whether addresses outside the public internet may be called.
    pub allow_private: bool,
}

impl HttpConfig {
    /// A URL such as `https://hooks.example/orders/{aggregatetype}`, with fields in the path or the query only; `source` is the
    /// `CloudEvents` attribute, such as `/outbox/orders`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: no such URL, fields in its host, or a password or a fragment in it.
    pub fn from_url(url: &str, source: impl Into<String>) -> Result<Self> {
        let wrong = |what: &str| Error::new(ErrorKind::Settings, format!("the address of the HTTP sink {what}"));
        let behind_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
        let authority = behind_scheme.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(wrong("has a user or a password in it: put a token into a file"));
        }
        if url.contains('#') {
            return Err(wrong("has a # in it, and what stands behind that is never sent"));
        }
        let template = Template::parse(url)?;
        if has_dot_segments(&template.pattern('/')) {
            return Err(wrong("has a part . or .. in its path, which leads elsewhere"));
        }
        let parsed = Url::parse(&template.pattern('/')).ok().filter(|parsed| matches!(parsed.scheme(), "http" | "https"));
        let parsed = parsed.ok_or_else(|| wrong("must begin with http:// or https:// and a host, as in https://hooks.example/orders"))?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("has a user or a password in it: put a token into a file"));
        }
        let host = parsed.host_str().unwrap_or_default().to_owned();
        if host.contains('*') || authority.contains('{') {
            return Err(wrong("has a field in its host: only the path and the query may have some"));
        }
        Ok(Self {
            origin: parsed.origin().ascii_serialization(),
            tls_needed: parsed.scheme() == "https",
            url: template,
            source: source.into(),
            mode: Mode::Structured,
            signer: None,
            token: None,
            tls: TlsFiles::default(),
            timeout: Duration::from_secs(15),
            allow_private: false,
            host,
        })
    }

    /// The secret that requests are signed with: text, or `whsec_` and Base64; at least 16 bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: it is too short, or not in Base64.
    pub fn signing_secret(self, secret: &str) -> Result<Self> {
        Ok(Self { signer: Some(Signer::new(secret)?), ..self })
    }

    /// A token for the header `authorization: Bearer …`, from a file, without its last newline.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: it cannot be read or used.
    pub fn token_file(self, path: &Path) -> Result<Self> {
        let token = secret::in_file(path, "the file with the HTTP sink's token")?;
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::new(ErrorKind::Settings, format!("{} has a token that no header can carry", path.display())));
        }
        Ok(Self { token: Some(token.into()), ..self })
    }

    /// Whether the token would be sent unencrypted.
    pub(super) fn shows_token(&self) -> bool {
        self.token.is_some() && !self.tls_needed && !is_this_machine(&self.host)
    }

    /// Checks a host that is an address here, because it is not resolved.
    pub(super) fn validated(self) -> Result<Self> {
        let address: Option<IpAddr> = self.host.trim_start_matches('[').trim_end_matches(']').parse().ok();
        if !self.allow_private && address.is_some_and(|address| !is_public(address)) {
            return Err(Error::new(ErrorKind::Settings, format!("the HTTP sink: {}", refused(&self.host))));
        }
        Ok(self)
    }
}

/// Whether a segment of a URL's path is `.` or `..` after decoding, as a server may read it: also with an encoded slash or backslash, and
/// with parameters after it.
pub(super) fn has_dot_segments(url: &str) -> bool {
    let behind_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = behind_scheme.split(['?', '#']).next().unwrap_or_default();
    let decoded: Vec<u8> = percent_decode_str(path).collect();
    // The first part is the host.
    let mut parts = decoded.split(|byte| matches!(byte, b'/' | b'\\')).skip(1);
    parts.any(|part| matches!(part.split(|byte| *byte == b';').next(), Some(b"." | b"..")))
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConfig").field("origin", &self.origin).field("mode", &self.mode).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_used_are_reported() {
        for (url, expected) in [
            ("ftp://host/", "must begin with http:// or https://"),
            ("https://", "must begin with http:// or https://"),
            ("https://{type}.example/", "has a field in its host"),
            ("https://example:{id}/", "has a field in its host"),
            ("https://me:secret@host/", "put a token into a file"),
            ("https://host/#{id}", "has a # in it"),
            ("https://host/secret/../x", "has a part . or .. in its path"),
            ("https://host/secret/./x", "has a part . or .. in its path"),
            ("https://host/%2e%2E/{id}", "has a part . or .. in its path"),
            ("https://host/a%2f..%5Cb", "has a part . or .. in its path"),
            ("https://host/a/..;v=1/b", "has a part . or .. in its path"),
        ] {
            let error = HttpConfig::from_url(url, "/").unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{url}: {error}");
        }
        for url in ["http://127.0.0.1:80/", "http://[::1]/", "http://0x7f.1/", "http://2130706433/", "http://[::ffff:10.0.0.1]/"] {
            let config = HttpConfig::from_url(url, "/").unwrap();
            assert!(config.clone().validated().unwrap_err().to_string().contains("sink_private = true"), "{url}");
            assert!(HttpConfig { allow_private: true, ..config }.validated().is_ok());
        }
    }
}
