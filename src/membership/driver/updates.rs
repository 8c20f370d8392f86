//! Turns the watch of members into the newest view for the machine, and logs what operators should know.

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use shardwise_core::machine::Input;
use shardwise_core::{Member, MemberState, View};
use shardwise_discovery::{Error, WatchEvent};

use super::Driver;
use crate::membership::departures;

/// The most events of a watch processed at once; timers are checked in between.
const BURST_MAX: usize = 256;
const VANISHED_LOGGED: usize = 100;
/// The most members that one line names.
const OTHERS_NAMED: usize = 10;

impl Driver {
    /// Merges this event with all that are available, so that a burst of changes is placed once, by the newest view.
    pub(super) fn on_watch(&mut self, first: Result<WatchEvent, Error>) -> Option<Input> {
        let mut merged = self.input_of(first);
        // Where it matters how members left, no view in which they drain may be skipped.
        let most = if self.membership.policy.max_loss.is_some() { 1 } else { BURST_MAX };
        for _ in 1..most {
            let Some(Some(event)) = next(self.watch.as_mut()).now_or_never() else { break };
            merged = match (merged, self.input_of(event)) {
                (Some(Input::Viewed { view, proven }), Some(Input::Proven { at })) => Some(Input::Viewed { view, proven: proven.max(at) }),
                (Some(Input::Viewed { view, proven }), Some(Input::Viewed { view: newer, .. })) if newer.revision() < view.revision() => {
                    Some(Input::Viewed { view, proven })
                }
                (earlier, later) => later.or(earlier),
            };
        }
        merged
    }

    fn input_of(&mut self, event: Result<WatchEvent, Error>) -> Option<Input> {
        if event.is_ok() {
            self.answered();
        }
        self.membership.blinded.send_if_modified(|why| {
            let now = event.as_ref().err().filter(|error| !error.is_retryable()).map(|error| error.to_string().into());
            std::mem::replace(why, now) != *why
        });
        if let Err(error) = &event {
            self.meters.failed(error);
        }
        match event {
            Ok(WatchEvent::View(snapshot)) => {
                self.blind = false;
                self.warn_of_older(&snapshot.view);
                self.warn_of_vanished(&snapshot.view);
                self.warn_of_other_settings(&snapshot.view);
                Some(Input::Viewed { view: snapshot.view, proven: snapshot.proven })
            }
            Ok(WatchEvent::Proven(at)) => {
                self.blind = false;
                Some(Input::Proven { at })
            }
            Ok(_) => None,
            Err(error) => {
                self.membership.failure.store(Some(Arc::new(error.to_string())));
                if !std::mem::replace(&mut self.blind, true) {
                    tracing::warn!(%error, "the group cannot be seen just now; ownership ends unless this passes within two TTLs");
                }
                None
            }
        }
    }

    fn warn_of_vanished(&self, view: &Arc<View>) {
        let gone = self.membership.departures.on_view(view);
        let vanished = gone.iter().filter(|gone| gone.vanished() && gone.instance_id != self.membership.instance_id);
        let vanished: Vec<_> = vanished.filter(|gone| departures::is_first_to_name(gone.incarnation)).collect();
        for gone in vanished.iter().take(VANISHED_LOGGED) {
            tracing::warn!(policy = %self.membership.policy.name, instance = ?gone.instance_id, "member lost: its lease expired and it had not deregistered");
        }
        if let Some(more) = vanished.len().checked_sub(VANISHED_LOGGED).filter(|more| *more > 0) {
            tracing::warn!(policy = %self.membership.policy.name, more, "more members were lost with these");
        }
    }

    /// Warns of members that the group refuses because of their settings. Instances of another fleet list no fingerprint and are not meant.
    fn warn_of_other_settings(&self, view: &View) {
        let Some(group) = view.group_fingerprint() else { return };
        // A worker that is refused itself logs its own refusal.
        if view.member(&self.membership.instance_id).is_none_or(|me| !me.fingerprints.contains(&group)) {
            return;
        }
        let is_refused = |member: &&Member| {
            member.state != MemberState::Away && !member.fingerprints.is_empty() && !member.fingerprints.contains(&group)
        };
        let refused: Vec<_> = view.members().iter().filter(is_refused).map(|member| member.instance_id.as_str()).collect();
        let Some(named) = refused.get(..refused.len().min(OTHERS_NAMED)).filter(|named| !named.is_empty()) else { return };
        let named = format!("{named:?}");
        if self.other_settings.another(named.clone()).is_some() {
            tracing::warn!(
                policy = %self.membership.policy.name, count = refused.len(),
                "other members have other settings and own nothing: {named}; give all the same settings"
            );
        }
    }

    /// Warns of members of a version that does not say what it serves: nothing keeps such a publisher of another outbox out of the group.
    /// Instances of another fleet list no fingerprint and are not meant.
    fn warn_of_older(&mut self, view: &View) {
        let older = view.members().iter().find(|member| member.serves.is_none() && !member.fingerprints.is_empty());
        let is_new = !std::mem::replace(&mut self.beside_older, older.is_some());
        if let Some(member) = older.filter(|_| is_new) {
            tracing::warn!(
                policy = %self.membership.policy.name,
                member = ?member.instance_id.as_str(),
                "this member's version does not say yet whether it serves keys or which outbox: make sure that it does the same work as this one, and \
                 upgrade it"
            );
        }
    }
}

/// The next event; `None` without a watch, or once it has ended.
pub(super) async fn next<T>(watch: Option<&mut BoxStream<'static, Result<T, Error>>>) -> Option<Result<T, Error>> {
    watch?.next().await
}
