//! Operators' routes: for single keys the width, and the members that requests should avoid.

use serde::{Deserialize, Serialize};

use super::{Width, WidthError};
use crate::InstanceId;
use crate::hex::hex_number;

/// The most keys with a route.
pub const ROUTES_MAX: usize = 64;
/// The most members that one route skips.
pub const SKIPS_MAX: usize = 16;

/// The hash of a key ([`ShardKey::key_hash`](crate::ShardKey::key_hash)), as sixteen hexadecimal digits in text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(u64);

hex_number!(KeyHash);

impl KeyHash {
    /// Wraps a hash.
    pub const fn new(hash: u64) -> Self {
        Self(hash)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One key's route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "KeyRouteNote", into = "KeyRouteNote")]
pub struct KeyRoute {
    key: KeyHash,
    width: Width,
    skip: Vec<InstanceId>,
}

/// Why routes are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutesError {
    /// There are too many.
    #[error("there are {given} routes; at most {ROUTES_MAX} are allowed: clear one that is not needed any more")]
    TooMany {
        /// Their number.
        given: usize,
    },
    /// One key has two.
    #[error("key {0} has two routes; one is allowed")]
    Twice(KeyHash),
    /// A route skips too many members.
    #[error("the route of key {key} skips {given} members; at most {SKIPS_MAX} are allowed")]
    TooManySkips {
        /// The key.
        key: KeyHash,
        /// How many it skips.
        given: usize,
    },
    /// The width is out of range.
    #[error("the route of key {key}: {error}")]
    Width {
        /// The key.
        key: KeyHash,
        /// The cause.
        error: WidthError,
    },
}

impl KeyRoute {
    /// The route of a key: its requests go to the first `width` members among its owner and successors, except those in `skip`.
    ///
    /// # Errors
    ///
    /// [`RoutesError::Width`], [`RoutesError::TooManySkips`].
    pub fn new(key: KeyHash, width: u64, skip: Vec<InstanceId>) -> Result<Self, RoutesError> {
        let width = Width::new(width).map_err(|error| RoutesError::Width { key, error })?;
        if skip.len() > SKIPS_MAX {
            return Err(RoutesError::TooManySkips { key, given: skip.len() });
        }
        Ok(Self { key, width, skip })
    }

    /// The key.
    pub const fn key(&self) -> KeyHash {
        self.key
    }

    /// Over how many members its requests are spread. The policy's own limit applies too.
    pub const fn width(&self) -> Width {
        self.width
    }

    /// The members that its requests avoid, if others can serve it.
    pub fn skip(&self) -> &[InstanceId] {
        &self.skip
    }

    /// Whether its requests avoid that member.
    pub fn skips(&self, instance_id: &InstanceId) -> bool {
        self.skip.contains(instance_id)
    }
}

/// The routes of a group, at most [`ROUTES_MAX`]: the content of the note `routes`.
///
/// As JSON: `{"routes":[{"key":"78af5f94892f3950","width":3,"skip":["worker-1"]}]}`; `skip` may be missing. A backend also limits the
/// length of a note, which many long names exceed earlier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RoutesNote", into = "RoutesNote")]
pub struct Routes {
    /// Sorted by key, each key once.
    routes: Vec<KeyRoute>,
}

impl Routes {
    /// Routes in any order.
    ///
    /// # Errors
    ///
    /// [`RoutesError::TooMany`], [`RoutesError::Twice`].
    pub fn new(mut routes: Vec<KeyRoute>) -> Result<Self, RoutesError> {
        if routes.len() > ROUTES_MAX {
            return Err(RoutesError::TooMany { given: routes.len() });
        }
        routes.sort_by_key(KeyRoute::key);
        match routes.windows(2).find(|pair| pair[0].key == pair[1].key) {
            Some(pair) => Err(RoutesError::Twice(pair[0].key)),
            None => Ok(Self { routes }),
        }
    }

    /// The route of the key with that hash. Allocates nothing.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&KeyRoute> {
        let at = self.routes.binary_search_by_key(&KeyHash(key), KeyRoute::key).ok()?;
        self.routes.get(at)
    }

    /// All of them, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = &KeyRoute> {
        self.routes.iter()
    }

    /// With this route, in place of an earlier one of its key.
    ///
    /// # Errors
    ///
    /// [`RoutesError::TooMany`].
    pub fn with(&self, route: KeyRoute) -> Result<Self, RoutesError> {
        let key = route.key;
        let others = self.routes.iter().filter(|known| known.key != key).cloned();
        Self::new(others.chain([route]).collect())
    }

    /// Without the route of that key.
    #[must_use]
    pub fn without(&self, key: KeyHash) -> Self {
        Self { routes: self.routes.iter().filter(|known| known.key != key).cloned().collect() }
    }
}

#[derive(Serialize, Deserialize)]
struct RoutesNote {
    routes: Vec<KeyRoute>,
}

#[derive(Serialize, Deserialize)]
struct KeyRouteNote {
    key: KeyHash,
    width: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skip: Vec<InstanceId>,
}

impl TryFrom<RoutesNote> for Routes {
    type Error = RoutesError;
    fn try_from(note: RoutesNote) -> Result<Self, RoutesError> {
        Self::new(note.routes)
    }
}

impl From<Routes> for RoutesNote {
    fn from(routes: Routes) -> Self {
        Self { routes: routes.routes }
    }
}

impl TryFrom<KeyRouteNote> for KeyRoute {
    type Error = RoutesError;
    fn try_from(note: KeyRouteNote) -> Result<Self, RoutesError> {
        Self::new(note.key, note.width, note.skip)
    }
}

impl From<KeyRoute> for KeyRouteNote {
    fn from(route: KeyRoute) -> Self {
        Self { key: route.key, width: u64::from(route.width.get()), skip: route.skip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    fn route(key: u64, width: u64, skip: &[&str]) -> KeyRoute {
        KeyRoute::new(KeyHash::new(key), width, skip.iter().map(|name| id(name)).collect()).unwrap()
    }

    #[test]
    fn a_note_reads_what_it_writes() {
        let routes = Routes::new(vec![route(0xff, 3, &["b", "a"]), route(1, 1, &[])]).unwrap();
        let text = serde_json::to_string(&routes).unwrap();
        let expected = r#"{"routes":[{"key":"0000000000000001","width":1},{"key":"00000000000000ff","width":3,"skip":["b","a"]}]}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Routes>(&text).unwrap(), routes);
        assert_eq!(serde_json::from_str::<Routes>(r#"{"routes":[]}"#).unwrap(), Routes::default());
    }

    #[test]
    fn a_key_has_its_route_until_it_is_cleared() {
        let routes = Routes::default().with(route(7, 2, &["a"])).unwrap().with(route(3, 4, &[])).unwrap();
        assert_eq!((routes.get(7), routes.get(8)), (Some(&route(7, 2, &["a"])), None));
        assert!(routes.get(7).unwrap().skips(&id("a")) && !routes.get(3).unwrap().skips(&id("a")));
        let routes = routes.with(route(7, 1, &[])).unwrap();
        assert_eq!(routes.iter().map(|route| (route.key().get(), route.width().get())).collect::<Vec<_>>(), [(3, 4), (7, 1)]);
        assert_eq!(routes.without(KeyHash::new(7)).iter().count(), 1);
    }

    #[test]
    fn what_is_out_of_range_is_refused_and_named() {
        let read = |text: &str| serde_json::from_str::<Routes>(text).unwrap_err().to_string();
        let one = |width: &str, more: &str| read(&format!(r#"{{"routes":[{{"key":"0000000000000007","width":{width}{more}}}]}}"#));
        let width = one("5", "");
        assert!(width.starts_with("the route of key 0000000000000007: width is 5; whole numbers from 1 to 4 are allowed"), "{width}");
        assert!(one("0", "").contains("width is 0; whole numbers from 1 to 4 are allowed"));
        assert!(one("-1", "").contains("-1") && one("1.5", "").contains("1.5"));
        let skips = one("1", &format!(r#","skip":[{}]"#, ["\"a\""; SKIPS_MAX + 1].join(",")));
        assert!(skips.starts_with("the route of key 0000000000000007 skips 17 members; at most 16 are allowed"), "{skips}");
        assert!(one("1", r#","skip":[""]"#).contains("the instance id is empty"));
        assert!(read(r#"{"routes":[{"key":"7","width":1}]}"#).contains("sixteen hexadecimal digits"));
        let twice = read(r#"{"routes":[{"key":"0000000000000007","width":1},{"key":"0000000000000007","width":2}]}"#);
        assert!(twice.starts_with("key 0000000000000007 has two routes; one is allowed"), "{twice}");
    }

    #[test]
    fn there_are_at_most_64() {
        let full = Routes::new((0..64).map(|key| route(key, 2, &[])).collect()).unwrap();
        assert_eq!(full.with(route(64, 2, &[])), Err(RoutesError::TooMany { given: 65 }));
        assert!(full.with(route(63, 1, &[])).is_ok(), "it replaces one");
        let text = serde_json::to_string(&full).unwrap();
        assert!(text.len() < 4_096, "64 routes without skips fit into a note: {} bytes", text.len());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), keys in prop::collection::vec(any::<u64>(), 0..80)) {
            prop_assert!(serde_json::from_str::<Routes>(&text).is_err() || text.contains("routes"));
            let distinct = keys.iter().collect::<std::collections::BTreeSet<_>>().len();
            let made = Routes::new(keys.iter().map(|key| route(*key, 2, &[])).collect());
            prop_assert_eq!(made.is_ok(), keys.len() <= ROUTES_MAX && distinct == keys.len());
            if let Ok(routes) = made {
                prop_assert!(keys.iter().all(|key| routes.get(*key).is_some_and(|route| route.key().get() == *key)));
            }
        }
    }
}
