//! The note `routes` of a group: an operator's widths for single keys, and the members that their requests avoid.

use std::sync::Arc;

use shardwise_core::routing::{KeyHash, KeyRoute, Routes};
use shardwise_core::{ClaimName, Policy, Timing};
use shardwise_discovery::{Discovery, NOTE_BYTES_MAX, Note, WriteOutcome};

use crate::error::{Error, ErrorKind, Result};
use crate::membership::NoteBook;

/// The note's name. Names for daemons and timers start with their kind and a slash.
const NAME: &str = "routes";
/// How often a change of the note is retried because another writer was faster.
const ATTEMPTS: u32 = 16;

#[derive(Clone)]
pub(crate) struct RouteStore(NoteBook);

impl RouteStore {
    /// `None` if the backend does not support notes: then there are no routes.
    pub(crate) fn of(policy: &Policy, timing: Timing, backend: &Arc<dyn Discovery>) -> Option<Self> {
        backend.as_notes()?;
        let name = ClaimName::new(NAME).ok()?;
        Some(Self(NoteBook::new(Arc::clone(backend), policy.group.clone(), name, timing.renew_every)))
    }

    pub(crate) async fn routes(&self) -> Result<Routes> {
        Ok(self.read().await?.0)
    }

    async fn read(&self) -> Result<(Routes, u64)> {
        let note = self.0.read().await?;
        let routes = note.as_ref().map_or_else(|| Ok(Routes::default()), decoded)?;
        Ok((routes, note.map_or(0, |note| note.version)))
    }

    /// Stores a route in place of an earlier one of its key. Returns `false` if this very route was stored already.
    pub(crate) async fn set(&self, route: &KeyRoute) -> Result<bool> {
        let with = |routes: &Routes| routes.with(route.clone()).map_err(|error| Error::new(ErrorKind::Settings, error.to_string()));
        self.change(with).await
    }

    /// Returns `false` if the key had none.
    pub(crate) async fn clear(&self, key: KeyHash) -> Result<bool> {
        self.change(|routes| Ok(routes.without(key))).await
    }

    async fn change(&self, change: impl Fn(&Routes) -> Result<Routes>) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            let (routes, version) = self.read().await?;
            let changed = change(&routes)?;
            if changed == routes {
                return Ok(false);
            }
            if let WriteOutcome::Written(_) = self.0.write(version, &encoded(&changed)?).await? {
                return Ok(true);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the routes of the group keep changing; try again"))
    }
}

fn decoded(note: &Note) -> Result<Routes> {
    serde_json::from_str(&note.text).map_err(|error| {
        let said = shardwise_discovery::one_line(&note.text);
        let message =
            format!("the note {NAME:?} cannot be read: {error}: {said:?}; it was edited by hand; write it like {{\"routes\":[]}}");
        Error::new(ErrorKind::Backend, message)
    })
}

fn encoded(routes: &Routes) -> Result<String> {
    let text = serde_json::to_string(routes).map_err(|error| Error::new(ErrorKind::Backend, error.to_string()))?;
    if text.len() > NOTE_BYTES_MAX {
        let message =
            format!("the routes have {} bytes, and a note has at most {NOTE_BYTES_MAX}: clear one, or skip fewer members", text.len());
        return Err(Error::new(ErrorKind::Settings, message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use shardwise_core::InstanceId;

    use super::*;

    #[test]
    fn routes_that_do_not_fit_into_a_note_are_refused() {
        let skip = |key: u64| (0..4).map(|n| InstanceId::new(format!("worker-{key}-{n}")).unwrap()).collect();
        let route = |key| KeyRoute::new(KeyHash::new(key), 2, skip(key)).unwrap();
        assert!(encoded(&Routes::new(vec![route(1)]).unwrap()).is_ok());
        let error = encoded(&Routes::new((0..64).map(route).collect()).unwrap()).unwrap_err();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("clear one, or skip fewer members"), "{error}");
    }

    #[test]
    fn a_note_that_was_edited_by_hand_is_an_error_that_shows_it() {
        let error = decoded(&Note { text: "{\"routes\":[{\"key\":\"7\"}]}".into(), version: 1 }).unwrap_err().to_string();
        assert!(error.contains("sixteen hexadecimal digits") && error.contains("write it like {\"routes\":[]}"), "{error}");
    }
}
