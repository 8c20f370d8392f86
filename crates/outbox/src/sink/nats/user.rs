//! What a server says of the user: that it does not accept it, or no longer.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::Event;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use shardwise::discovery::nats::UserCredentials;
use tokio::sync::watch;

use super::super::connection::words;
use super::NatsConfig;
use crate::{Error, ErrorKind};

/// Hears what becomes of a connection.
pub(super) struct ConnectionWatcher {
    lost: watch::Sender<Option<String>>,
    /// That the server accepts the user no longer, in its words.
    refusal: Mutex<Option<String>>,
    advice: &'static str,
}

impl ConnectionWatcher {
    /// When the connection is lost, `lost` gets the reason.
    pub(super) fn new(lost: watch::Sender<Option<String>>, config: &NatsConfig) -> Self {
        Self { lost, refusal: Mutex::default(), advice: advice(config) }
    }

    pub(super) fn note(&self, event: &Event) {
        match event {
            // Such as an expired or a revoked JWT: the server says so, and hangs up.
            Event::ServerError(error) if is_about_user(&error.to_string()) => {
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(words(error));
            }
            Event::Disconnected | Event::Closed => {
                let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
                let reason = refusal.map(|refusal| format!("the server ended the connection ({refusal}): {}", self.advice));
                let reason = reason.unwrap_or_else(|| "the connection broke".into());
                // The first event says why.
                self.lost.send_if_modified(|lost| {
                    let is_first = lost.is_none();
                    if is_first {
                        *lost = Some(reason);
                    }
                    is_first
                });
            }
            _ => {}
        }
    }
}

/// Whether the server's words are about who the user is, and not about one of its rights.
pub(super) fn is_about_user(text: &str) -> bool {
    let text = text.to_lowercase();
    // A missing right is reported with its subject, which may contain any word.
    !text.contains("permissions violation") && (text.contains("authentication") || text.contains("authorization"))
}

/// What to do when the server does not accept the user.
fn advice(config: &NatsConfig) -> &'static str {
    if config.creds_file.is_some() {
        "correct the credentials in sink_creds_file, which is read for each connection"
    } else {
        "correct the user in sink and the password or token in sink_password_file, and restart the publisher"
    }
}

/// How many seconds ago the JWT expired, if it did.
fn expired_for(jwt: &str, now: u64) -> Option<u64> {
    let claims = URL_SAFE_NO_PAD.decode(jwt.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    let at = claims.get("exp")?.as_u64().filter(|at| *at > 0)?;
    now.checked_sub(at)
}

/// The error for a user that the server does not accept.
pub(super) fn not_accepted(config: &NatsConfig) -> Error {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let credentials = config.creds_file.as_ref().and_then(|path| UserCredentials::read(path).ok());
    let expired = credentials.and_then(|credentials| expired_for(credentials.jwt(), now));
    let why = expired.map(|seconds| format!(", whose JWT expired {seconds} s ago")).unwrap_or_default();
    Error::new(ErrorKind::Denied, format!("NATS at {} does not accept this user{why}: {}", config.place, advice(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: &str) -> String {
        format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_jwt_says_when_it_expires() {
        assert_eq!(expired_for(&jwt(r#"{"exp":100}"#), 130), Some(30));
        assert_eq!(expired_for(&jwt(r#"{"exp":100}"#), 99), None);
        for lasting in [jwt("{}"), jwt(r#"{"exp":0}"#), jwt("nonsense"), "a.b".into(), "a".into()] {
            assert_eq!(expired_for(&lasting, 130), None, "{lasting}");
        }
    }

    #[test]
    fn a_right_that_is_missing_says_nothing_about_the_user_whatever_the_subject_is_called() {
        for about_user in
            ["Authorization Violation", "'User Authentication Expired'", "Account Authentication Expired", "authentication error"]
        {
            assert!(is_about_user(about_user), "{about_user}");
        }
        for other in [
            r#"Permissions Violation for Publish to "authorization.a""#,
            "'permissions violation for subscription to \"x.authentication\"'",
        ] {
            assert!(!is_about_user(other), "{other}");
        }
        let (lost, broken) = watch::channel(None);
        let watcher = ConnectionWatcher { lost, refusal: Mutex::default(), advice: "do this" };
        let refused = async_nats::ServerError::Other("Permissions Violation for Publish to \"authorization.a\"".into());
        watcher.note(&Event::ServerError(refused));
        watcher.note(&Event::Disconnected);
        assert_eq!(broken.borrow().as_deref(), Some("the connection broke"));
    }

    #[test]
    fn the_reason_of_the_server_is_kept() {
        let (lost, broken) = watch::channel(None);
        let watcher = ConnectionWatcher { lost, refusal: Mutex::default(), advice: "do this" };
        let error = |text: &str| Event::ServerError(async_nats::ServerError::Other(text.into()));
        watcher.note(&error("Permissions Violation for Publish to \"x\""));
        watcher.note(&error("User Authentication Expired"));
        assert_eq!(*broken.borrow(), None);
        watcher.note(&Event::Disconnected);
        watcher.note(&Event::Closed);
        let reason = broken.borrow().clone().unwrap();
        assert_eq!(reason, "the server ended the connection (nats: User Authentication Expired): do this");
    }
}
