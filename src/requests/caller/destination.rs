//! Where a request goes.

use shardwise_core::routing::{AskError, SessionId};
use shardwise_core::{ClaimName, InstanceId, KEY_BYTES_MAX, Key, OwnedKey};

use crate::requests::answer::is_type;
use crate::requests::{Addressee, BODY_BYTES_MAX, CONTENT_TYPE_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, QUERY_BYTES_MAX, Request, is_path};

/// The destination of a request. It has a set of members that may serve it, by the placement, the claims and the view; nothing is stored
/// for it.
#[derive(Debug, Clone, Copy)]
pub enum To<'a> {
    /// The owner of a key: under exclusive ownership the holder of its slot, else its owner by the newest view and, as far as the key is
    /// spread, the members that follow it. [`To::owner`] makes it from text and bytes, `To::from(&OwnedKey)` from any other key.
    Owner(Key<'a>),
    /// The holder of a name, such as `singleton/leader`, `daemon/ingest/3` or `timer/report`; only under exclusive ownership.
    Holder(&'a ClaimName),
    /// One member.
    Member(&'a InstanceId),
    /// The member that opened a session.
    Session(&'a SessionId),
    /// Any one of several members.
    Any(Among<'a>),
}

/// The members of [`To::Any`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Among<'a> {
    pub(super) label: Option<(&'a str, &'a str)>,
}

impl<'a> Among<'a> {
    /// All active members.
    pub const fn all() -> Self {
        Self { label: None }
    }

    /// The active members whose metadata (`instance.metadata`) has that value under that name.
    pub const fn labelled(name: &'a str, value: &'a str) -> Self {
        Self { label: Some((name, value)) }
    }
}

impl<'a> To<'a> {
    /// The owner of a key that is text or bytes. An integer is made to a key first: `To::from(&OwnedKey::of(&7_u32))`.
    pub fn owner<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Self {
        Self::Owner(Key::new(key.as_ref()))
    }

    /// Any active member.
    pub const fn any() -> Self {
        Self::Any(Among::all())
    }

    pub(super) const fn key(&self) -> Option<Key<'a>> {
        if let Self::Owner(key) = self { Some(*key) } else { None }
    }

    pub(super) const fn addressee(&self) -> Addressee {
        match self {
            Self::Owner(_) => Addressee::Owner,
            Self::Holder(_) => Addressee::Holder,
            Self::Member(_) => Addressee::Instance,
            Self::Session(_) => Addressee::Session,
            Self::Any(_) => Addressee::Any,
        }
    }

    /// The name in metrics.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Owner(_) => "owner",
            Self::Holder(_) => "holder",
            Self::Member(_) => "member",
            Self::Session(_) => "session",
            Self::Any(_) => "any",
        }
    }

    /// The request with this destination; the error is the part of it that no member would take.
    pub(super) fn address(&self, request: Request) -> Result<Request, AskError> {
        if let Some(why) = mistake(&request, self.key()) {
            return Err(AskError::Invalid(why));
        }
        let (key, name, session) = match self {
            Self::Owner(key) => (Some(OwnedKey::from(*key)), None, None),
            Self::Holder(name) => (None, Some((*name).clone()), None),
            Self::Session(id) => (None, None, Some(id.to_string())),
            Self::Member(_) | Self::Any(_) => (None, None, None),
        };
        Ok(Request { to: self.addressee(), key, name, session, ..request })
    }
}

impl<'a> From<&'a OwnedKey> for To<'a> {
    fn from(key: &'a OwnedKey) -> Self {
        Self::Owner(key.as_key())
    }
}

/// What is wrong with a request; `None` if it may be sent.
fn mistake(request: &Request, key: Option<Key<'_>>) -> Option<String> {
    let too_long =
        |what: &str, bytes: usize, most: usize| (bytes > most).then(|| format!("{what} has {bytes} bytes; at most {most} are allowed"));
    if !is_path(&request.path) {
        let wanted = "write parts of letters, digits and -._~ with single slashes between them, such as \"cache/size\"";
        return Some(format!("the path {:?}: {wanted}", shardwise_core::one_line(&request.path, 64)));
    }
    let is_key = |text: &String| (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if request.idempotency_key.as_ref().is_some_and(|text| !is_key(text)) {
        return Some(format!("its idempotency key is not 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes of printable ASCII without blanks"));
    }
    if request.content_type.as_ref().is_some_and(|text| !is_type(text)) {
        return Some(format!("the type of its body is not printable ASCII of at most {CONTENT_TYPE_BYTES_MAX} bytes"));
    }
    // A fragment would be cut off on its way.
    let is_query = |query: &String| format!("/?{query}").parse::<http::Uri>().is_ok_and(|uri| uri.query() == Some(query.as_str()));
    let query = request.query.as_ref().filter(|query| query.len() <= QUERY_BYTES_MAX);
    if query.is_some_and(|query| !is_query(query)) {
        return Some("its query is not percent-encoded: write # as %23 and blanks as %20".to_owned());
    }
    too_long("the key", key.map_or(0, |key| key.bytes().len()), KEY_BYTES_MAX)
        .or_else(|| too_long("the query", request.query.as_ref().map_or(0, String::len), QUERY_BYTES_MAX))
        .or_else(|| too_long("the body", request.body.len(), BODY_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_what_its_destination_says() {
        let (name, id) = (ClaimName::new("singleton/a").unwrap(), InstanceId::new("a").unwrap());
        let session = SessionId::new(shardwise_core::Incarnation::new(1), [7; 16]);
        let number = OwnedKey::of(&7_u32);
        for (to, addressee) in [
            (To::owner("a"), Addressee::Owner),
            (To::from(&number), Addressee::Owner),
            (To::Holder(&name), Addressee::Holder),
            (To::Member(&id), Addressee::Instance),
            (To::Session(&session), Addressee::Session),
            (To::any(), Addressee::Any),
        ] {
            let request = to.address(Request { session: Some("of before".into()), ..Request::get("status") }).unwrap();
            assert_eq!(request.to, addressee);
            let has = (request.key.is_some(), request.name.is_some(), request.session.is_some());
            assert_eq!(has, (addressee == Addressee::Owner, addressee == Addressee::Holder, addressee == Addressee::Session));
        }
        assert_eq!(To::from(&number).address(Request::get("a")).unwrap().key, Some(number), "an integer stays one");
    }

    #[test]
    fn what_no_member_would_take_is_not_sent() {
        let invalid = |to: To<'_>, request: Request| match to.address(request) {
            Err(AskError::Invalid(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(to_long_key(KEY_BYTES_MAX).is_ok());
        assert_eq!(to_long_key(KEY_BYTES_MAX + 1), Err(AskError::Invalid("the key has 65537 bytes; at most 65536 are allowed".into())));
        let long = vec![0; BODY_BYTES_MAX + 1];
        assert!(invalid(To::any(), Request::post("a", "x/y", long)).starts_with("the body has 1048577 bytes"));
        assert!(
            invalid(To::any(), Request { query: Some("a".repeat(4_097)), ..Request::get("a") }).starts_with("the query has 4097 bytes")
        );
        for path in ["", "/a", "a//b", "a b", "../a"] {
            assert!(invalid(To::any(), Request::get(path)).contains("single slashes between them"), "{path:?}");
        }
        for query in ["a#b", "a b", "a\n"] {
            let request = Request { query: Some(query.into()), ..Request::get("a") };
            assert!(invalid(To::any(), request).contains("percent-encoded"), "{query:?}");
        }
        for kind in ["a\r\nb: c".to_owned(), "é".into(), "k".repeat(CONTENT_TYPE_BYTES_MAX + 1)] {
            assert!(invalid(To::any(), Request::post("a", kind.clone(), "x")).contains("type of its body"), "{kind:?}");
        }
        let longest = "q".repeat(QUERY_BYTES_MAX);
        for query in ["", "a=%2f&b", longest.as_str()] {
            assert!(To::any().address(Request { query: Some(query.into()), ..Request::get("a") }).is_ok(), "{query}");
        }
        for key in [String::new(), "a b".into(), "é".into(), "k".repeat(257)] {
            assert!(invalid(To::any(), Request::get("a").with_idempotency_key(key.clone())).contains("idempotency key"), "{key:?}");
        }
    }

    fn to_long_key(bytes: usize) -> Result<(), AskError> {
        let key = vec![1_u8; bytes];
        To::owner(&key).address(Request::get("a")).map(drop)
    }
}
