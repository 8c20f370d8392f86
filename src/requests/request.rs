//! A request to a member.

use serde::Serialize;
use serde::de::DeserializeOwned;
use shardwise_core::{ClaimName, OwnedKey};

use super::{Addressee, Answer};

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// It changes nothing, so it may be sent twice.
    Get,
    /// It may change something, and is sent at most once, unless it has an idempotency key.
    Post,
}

/// A request to a handler. It does not name the caller, which was authenticated before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The addressee, which decides between the handlers of `on_request`, `on_any`, `on_owned` and the others.
    pub to: Addressee,
    /// The method.
    pub method: Method,
    /// The path of the handler, without a slash in front ([`super::is_path`]).
    pub path: String,
    /// The query after the question mark, as sent: percent-encoded, at most [`super::QUERY_BYTES_MAX`] bytes.
    pub query: Option<String>,
    /// The type of the body, as the caller states it: at most [`super::CONTENT_TYPE_BYTES_MAX`] bytes of printable ASCII.
    pub content_type: Option<String>,
    /// The body, at most [`super::BODY_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
    /// Of a request to a key's owner.
    pub key: Option<OwnedKey>,
    /// Of a request to a name's holder.
    pub name: Option<ClaimName>,
    /// Of a request to a session: its id.
    pub session: Option<String>,
    /// The caller's word that this may be handled twice with the effect of once: the handler finds by it whether it has done it before. At
    /// most [`super::IDEMPOTENCY_KEY_BYTES_MAX`] bytes of printable ASCII.
    pub idempotency_key: Option<String>,
    /// The caller does not wait for the handler: it is answered 202 once a handler has begun ([`crate::ShardingService::tell`]).
    pub tell: bool,
}

impl Request {
    /// A request to one instance with that method and nothing else.
    pub const fn new(method: Method) -> Self {
        Self {
            to: Addressee::Instance,
            method,
            path: String::new(),
            query: None,
            content_type: None,
            body: Vec::new(),
            key: None,
            name: None,
            session: None,
            idempotency_key: None,
            tell: false,
        }
    }

    /// A `GET` of that path.
    pub fn get(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::new(Method::Get) }
    }

    /// A `POST` of that body to that path.
    pub fn post(path: impl Into<String>, content_type: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), content_type: Some(content_type.into()), body: body.into(), ..Self::new(Method::Post) }
    }

    /// A `POST` of a value as JSON.
    ///
    /// # Errors
    ///
    /// The value cannot be serialized.
    pub fn post_json(path: impl Into<String>, value: &impl Serialize) -> serde_json::Result<Self> {
        Ok(Self::post(path, "application/json", serde_json::to_vec(value)?))
    }

    /// The same, which may be sent again while it is unknown if it was handled: the handler recognises it by that key.
    #[must_use]
    pub fn with_idempotency_key(self, key: impl Into<String>) -> Self {
        Self { idempotency_key: Some(key.into()), ..self }
    }

    /// Whether it may be handled more than once: a `GET`, or a request with an idempotency key.
    pub const fn is_repeatable(&self) -> bool {
        matches!(self.method, Method::Get) || self.idempotency_key.is_some()
    }

    /// Parses the body as JSON, whatever its stated type; the error is the answer 400 with the cause.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Answer> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Answer::problem(400, "bad-request", "The request cannot be understood", &format!("the body: {error}")))
    }
}
