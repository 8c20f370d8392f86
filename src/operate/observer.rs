//! Observes a group without joining it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use shardwise_core::machine::{MemberRefusal, policy_mismatch};
use shardwise_core::{
    Holders, Holding, InstanceId, Moment, OwnershipMode, Placer, Policy, Resource, ShardKey, SlotOwners, VersionRule, View, ViewPlacement,
    slot_of,
};
use shardwise_discovery::{Clock, WatchEvent};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::Group;
use super::claims::ObservedClaims;
use crate::error::{Error, ErrorKind, Result, locked};
use crate::membership::{Absence, Absences, Departure, Departures, PROOFS_PER_TTL, follow, placed_ahead, placer, without_holders};
#[cfg(feature = "requests")]
use crate::requests::caller::{GroupFeed, ProvenView};

/// Members and owners of a group in the newest view. Created by [`crate::ShardingFactory::observe`]; follows the group until dropped.
pub struct Observer {
    policy: Policy,
    clock: Clock,
    history: Arc<GroupHistory>,
    views: watch::Receiver<Option<Arc<ObservedView>>>,
    following: AbortHandle,
    /// `None` under eventual ownership, which has no holders.
    claims: Option<ObservedClaims>,
}

/// What the task that follows the group has seen so far.
#[derive(Default)]
struct GroupHistory {
    absences: Absences,
    departures: Departures,
    /// When the view was last proven current.
    proven: Mutex<Moment>,
}

impl GroupHistory {
    fn prove(&self, at: Moment) {
        let mut proven = locked(&self.proven);
        *proven = at.max(*proven);
    }
}

struct ObservedView {
    view: Arc<View>,
    /// `None`: no member owns anything.
    placed: Result<Option<ViewPlacement>>,
}

impl Observer {
    pub(crate) async fn start(group: Group<'_>, clock: Clock) -> Result<Self> {
        let Group { policy, timing, backend } = group;
        let (sender, mut views) = watch::channel(None);
        let (failures, mut failure) = watch::channel::<Option<shardwise_discovery::Error>>(None);
        let claims =
            (policy.ownership == OwnershipMode::Exclusive).then(|| ObservedClaims::follow(policy, timing, &backend, clock.clone()));
        let mut watch = placed_ahead(follow(&backend, &policy.group, timing.ttl / PROOFS_PER_TTL), policy.clone());
        let history = Arc::<GroupHistory>::default();
        let (placing, seen, by) = (policy.clone(), Arc::clone(&history), clock.clone());
        let following = tokio::spawn(async move {
            let mut kept = None;
            // Logged once until the watch succeeds again.
            let mut blind = false;
            while let Some(event) = watch.next().await {
                let blind_before = std::mem::replace(&mut blind, event.is_err());
                match event {
                    Ok(WatchEvent::View(snapshot)) => {
                        seen.absences.on_view(&snapshot.view, by.now());
                        seen.departures.on_view(&snapshot.view);
                        sender.send_replace(Some(Arc::new(observed(&placing, snapshot.view, &mut kept))));
                        // After the view, so that a reader of this and then of the view has one that is at least as new.
                        seen.prove(snapshot.proven);
                    }
                    Ok(WatchEvent::Proven(at)) => seen.prove(at),
                    Ok(_) => {}
                    Err(error) => {
                        if !blind_before {
                            tracing::warn!(error = %error.context(), "the group cannot be seen just now");
                        }
                        failures.send_replace(Some(error));
                    }
                }
            }
        });
        let following = following.abort_handle();
        let mut observer = Self { policy: policy.clone(), clock, history, views: views.clone(), following, claims };
        let seen = tokio::select! {
            seen = tokio::time::timeout(timing.ttl, views.wait_for(Option::is_some)) => seen.is_ok_and(|seen| seen.is_ok()),
            _ = failure.wait_for(|error| error.as_ref().is_some_and(|error| !error.is_retryable())) => false,
        };
        if !seen {
            let stopped = || Error::new(ErrorKind::Unavailable, "the backend showed no view of the group within the TTL; is it running?");
            return Err(failure.borrow().clone().map_or_else(stopped, Error::from));
        }
        observer.views.mark_unchanged();
        if let Some(claims) = &observer.claims {
            claims.first(timing.ttl).await;
        }
        Ok(observer)
    }

    fn observed(&self) -> Option<Arc<ObservedView>> {
        self.views.borrow().clone()
    }

    /// The policy whose group it observes.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The group's members as last seen.
    pub fn members(&self) -> Arc<View> {
        self.observed().map(|observed| Arc::clone(&observed.view)).unwrap_or_default()
    }

    /// The members that have left for a while (`rejoin_grace`), and the longest time for which their places are kept.
    pub fn absences(&self) -> Vec<Absence> {
        self.history.absences.of_view(&self.members(), self.policy.rejoin_grace, self.clock.now())
    }

    /// Members that have gone since this observer started, the latest last, at most 1,024: those that left, and those that vanished
    /// ([`Departure::vanished`]).
    pub fn departures(&self) -> Vec<Departure> {
        self.history.departures.all()
    }

    /// How long ago the newest view was last proven current. It grows while the backend does not answer.
    pub fn view_age(&self) -> Duration {
        self.clock.now().since(*locked(&self.history.proven))
    }

    /// The present moment on the clock of [`shardwise_core::HeldClaim::since`].
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The owner of a key by the newest view; `None` if no member owns it. While the versions of the group differ under
    /// `version_rule = "newest"`, holders keep what they have, and the owner is the holder, if there is one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherPolicy`] if the group agrees on other constants than this policy's; [`ErrorKind::Settings`] if its weights need
    /// more points than its key placement allows. The same holds for the next two.
    pub fn owner<K: ShardKey + ?Sized>(&self, key: &K) -> Result<Option<InstanceId>> {
        let placed = self.placed()?.and_then(|placed| placed.owner(key).cloned());
        if self.policy.version_rule == VersionRule::None || !self.members().versions_differ() {
            return Ok(placed);
        }
        Ok(self.holder(key)?.held.map(|held| held.claim.holder.instance_id).or(placed))
    }

    /// The owners of all slots by the newest view; [`ErrorKind::Settings`] if the group uses a key placement, which has no slots.
    pub fn owners(&self) -> Result<Arc<SlotOwners>> {
        match self.placed()? {
            Some(ViewPlacement::Slots(owners)) => Ok(owners),
            Some(ViewPlacement::Keys(owners)) => {
                let message = format!("placement {} has no slots; ask for the owner of each key", owners.placement());
                Err(Error::new(ErrorKind::Settings, message))
            }
            None => Ok(Arc::new(SlotOwners::place([], self.policy.placement))),
        }
    }

    /// Who holds each slot and name, and where that differs, which member the placement names and why that one does not hold it: every slot
    /// in order, then the names that are held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] under eventual ownership, which has no holders; as [`Observer::owner`]; retryable,
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Backend`] while the claims cannot be read.
    pub fn holders(&self) -> Result<Vec<Holding>> {
        let (view, owners) = self.view_and_owners()?;
        self.claims(|holders| Holding::all(&view, &self.policy, owners.as_deref(), holders))
    }

    /// Who holds the slot of a key, as [`Observer::holders`].
    ///
    /// # Errors
    ///
    /// As [`Observer::holders`].
    pub fn holder<K: ShardKey + ?Sized>(&self, key: &K) -> Result<Holding> {
        let (view, owners) = self.view_and_owners()?;
        let slot = slot_of(key.key_hash(), owners.as_ref().map_or(self.policy.placement.slots, |owners| owners.params().slots));
        self.claims(|holders| Holding::of_slot(slot, &view, self.policy.version_rule, owners.as_deref(), holders))
    }

    /// How many slots each member holds; a member that holds none is missing.
    ///
    /// # Errors
    ///
    /// As [`Observer::holders`], but for the placement's.
    pub fn slots_held(&self) -> Result<BTreeMap<InstanceId, u32>> {
        self.claims(|holders| {
            let mut held = BTreeMap::new();
            for (resource, holder) in holders.iter() {
                if matches!(resource, Resource::Slot(_)) {
                    *held.entry(holder.claim.holder.instance_id.clone()).or_default() += 1;
                }
            }
            held
        })
    }

    /// How often the holders have changed since this observer started, which includes that they could not be read any more and that they
    /// could again: while it is the same, so are the holders. `None` under eventual ownership.
    pub fn claims_seen(&self) -> Option<u64> {
        self.claims.as_ref().map(ObservedClaims::seen)
    }

    fn claims<T>(&self, read: impl FnOnce(&Holders) -> T) -> Result<T> {
        self.claims.as_ref().ok_or_else(|| without_holders(&self.policy))?.read(read)
    }

    /// The newest view and its placement, `None` if no member owns anything.
    fn view_and_owners(&self) -> Result<(Arc<View>, Option<Arc<SlotOwners>>)> {
        let Some(observed) = self.observed() else { return Ok(Default::default()) };
        let owners =
            observed.placed.clone()?.and_then(|placed| if let ViewPlacement::Slots(owners) = placed { Some(owners) } else { None });
        Ok((Arc::clone(&observed.view), owners))
    }

    /// The placement of the newest view, by slots or by keys; `None` if no member owns anything.
    pub fn placed(&self) -> Result<Option<ViewPlacement>> {
        self.observed().map_or(Ok(None), |observed| observed.placed.clone())
    }

    /// The group's members, now and whenever they change, for several readers.
    pub fn views(&self) -> impl Stream<Item = Arc<View>> + Send + use<> {
        let views = self.views.clone();
        stream::unfold((views, true), |(mut views, first)| async move {
            if !first {
                views.changed().await.ok()?;
            }
            let view = views.borrow_and_update().as_ref().map(|observed| Arc::clone(&observed.view)).unwrap_or_default();
            Some((view, (views, false)))
        })
    }

    /// What a caller of requests follows.
    #[cfg(feature = "requests")]
    pub(super) fn feed(&self) -> (GroupFeed, ProvenView) {
        let (history, views) = (Arc::clone(&self.history), self.views.clone());
        let proven = move || {
            let proven = *locked(&history.proven);
            Some((proven, Arc::clone(&views.borrow().as_ref()?.view)))
        };
        let holders = self.claims.as_ref().map(ObservedClaims::holders);
        (GroupFeed { views: self.views().boxed(), holders, routes: None }, Box::new(proven))
    }

    /// Waits for the next view. `false` once there will be none.
    pub async fn changed(&mut self) -> bool {
        self.views.changed().await.is_ok()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// Places a view by what the group serves; `kept` keeps the placer, and with it the ring, until the next view.
fn observed(policy: &Policy, view: Arc<View>, kept: &mut Option<Arc<Placer>>) -> ObservedView {
    let group = view.group_fingerprint();
    let placed = match (policy.serving(group), group) {
        (None, Some(group)) => Err(Error::new(ErrorKind::OtherPolicy, policy_mismatch("this command", policy, group))),
        (Some(params), _) if view.active() >= policy.min_members as usize => {
            let placer = kept.insert(placer(&policy.group, params));
            placer.place(&view).map(Some).map_err(|error| Error::from(&MemberRefusal::from(error)))
        }
        _ => Ok(None),
    };
    ObservedView { view, placed }
}
