//! Observes a group without joining it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use shardwise_core::machine::MemberRefusal;
use shardwise_core::{
    Holders, Holding, InstanceId, Moment, OwnershipMode, PlacementParams, Placer, Policy, ShardKey, SlotOwners, Timing, VersionRule, View,
    ViewPlacement, slot_of,
};
use shardwise_discovery::{Clock, Discovery, WatchEvent};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::claims::ObservedClaims;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::{Absence, Absences, Departure, Departures, PROOFS_PER_TTL, follow, placed_ahead, placer, without_holders};

/// Members and owners of a group in the newest view. Created by [`crate::ShardingFactory::observe`]; follows the group until dropped.
pub struct Observer {
    policy: Policy,
    clock: Clock,
    absences: Arc<Absences>,
    departures: Arc<Departures>,
    /// When the view was last proven current.
    proven: Arc<Mutex<Moment>>,
    views: watch::Receiver<Option<Arc<ObservedView>>>,
    following: AbortHandle,
    /// `None` under eventual ownership, which has no holders.
    claims: Option<ObservedClaims>,
}

struct ObservedView {
    view: Arc<View>,
    /// `None`: no member owns anything.
    placed: Result<Option<ViewPlacement>>,
}

impl Observer {
    pub(crate) async fn start(policy: Policy, timing: Timing, backend: Arc<dyn Discovery>, clock: Clock) -> Result<Self> {
        let (sender, mut views) = watch::channel(None);
        let claims =
            (policy.ownership == OwnershipMode::Exclusive).then(|| ObservedClaims::follow(&policy, timing, &backend, clock.clone()));
        let mut watch = placed_ahead(follow(&backend, &policy.group, timing.ttl / PROOFS_PER_TTL), policy.clone());
        let (failures, mut failure) = watch::channel(None);
        let (placing, absences) = (policy.clone(), Arc::<Absences>::default());
        let (departures, proven) = (Arc::<Departures>::default(), Arc::new(Mutex::new(Moment::ZERO)));
        let (seen, gone, last_proven, by) = (Arc::clone(&absences), Arc::clone(&departures), Arc::clone(&proven), clock.clone());
        let prove = move |at: Moment| {
            let mut proven = last_proven.lock().unwrap_or_else(PoisonError::into_inner);
            *proven = at.max(*proven);
        };
        let following = tokio::spawn(async move {
            let mut placing = ObserverPlacer { placer: placer(&placing.group, placing.placement), by: placing.placement, policy: placing };
            // Logged once until the watch succeeds again.
            let mut blind = false;
            while let Some(event) = watch.next().await {
                let blind_before = std::mem::replace(&mut blind, event.is_err());
                match event {
                    Ok(WatchEvent::View(snapshot)) => {
                        seen.on_view(&snapshot.view, by.now());
                        gone.on_view(&snapshot.view);
                        prove(snapshot.proven);
                        sender.send_replace(Some(Arc::new(placing.observed(snapshot.view))));
                    }
                    Ok(WatchEvent::Proven(at)) => prove(at),
                    Ok(_) => {}
                    Err(error) => {
                        if !blind_before {
                            tracing::warn!(%error, "the group cannot be seen just now");
                        }
                        failures.send_replace(Some(error));
                    }
                }
            }
        });
        let mut observer =
            Self { policy, clock, absences, departures, proven, views: views.clone(), following: following.abort_handle(), claims };
        let seen = tokio::select! {
            seen = tokio::time::timeout(timing.ttl, views.wait_for(Option::is_some)) => seen.is_ok_and(|seen| seen.is_ok()),
            permanent = failure.wait_for(|error| error.as_ref().is_some_and(|e: &shardwise_discovery::Error| !e.is_retryable())) => {
                return Err(permanent.ok().and_then(|e| e.clone()).map_or_else(stopped, Error::from));
            }
        };
        let last_failure = || failure.borrow().clone().map_or_else(stopped, Error::from);
        if !seen {
            return Err(last_failure());
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
        self.absences.of_view(&self.members(), self.policy.rejoin_grace, self.clock.now())
    }

    /// Members that have gone since this observer started, the latest last, at most 1,024: those that left, and those that vanished
    /// ([`Departure::vanished`]).
    pub fn departures(&self) -> Vec<Departure> {
        self.departures.all()
    }

    /// How long ago the newest view was last proven current. It grows while the backend does not answer.
    pub fn view_age(&self) -> Duration {
        self.clock.now().since(*self.proven.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The owner of a key by the newest view; `None` if no member owns it. While the versions of the group differ under
    /// `version_rule = "newest"`, holders keep what they have, and the owner is the holder, if there is one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherPolicy`] if the group agrees on other constants than this policy's; [`ErrorKind::Settings`] if its weights need
    /// more points than its key placement allows.
    pub fn owner<K: ShardKey + ?Sized>(&self, key: &K) -> Result<Option<InstanceId>> {
        let placed = self.placed()?.and_then(|placed| placed.owner(key).cloned());
        if self.policy.version_rule == VersionRule::None || !self.members().versions_differ() {
            return Ok(placed);
        }
        Ok(self.holder(key)?.held.map(|held| held.claim.holder.instance_id).or(placed))
    }

    /// The owners of all slots by the newest view.
    ///
    /// # Errors
    ///
    /// As [`Observer::owner`], and [`ErrorKind::Settings`] if the group uses a key placement, which has no slots.
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
        let holders = self.claims()?;
        let owners = self.slot_owners()?;
        Ok(Holding::all(&self.members(), &self.policy, owners.as_deref(), &holders))
    }

    /// Who holds the slot of a key, as [`Observer::holders`].
    ///
    /// # Errors
    ///
    /// As [`Observer::holders`].
    pub fn holder<K: ShardKey + ?Sized>(&self, key: &K) -> Result<Holding> {
        let holders = self.claims()?;
        let owners = self.slot_owners()?;
        let slot = slot_of(key.key_hash(), owners.as_ref().map_or(self.policy.placement.slots, |owners| owners.params().slots));
        Ok(Holding::of_slot(slot, &self.members(), self.policy.version_rule, owners.as_deref(), &holders))
    }

    fn claims(&self) -> Result<Holders> {
        self.claims.as_ref().ok_or_else(|| without_holders(&self.policy))?.holders()
    }

    /// `None` if no member owns anything.
    fn slot_owners(&self) -> Result<Option<Arc<SlotOwners>>> {
        Ok(self.placed()?.and_then(|placed| if let ViewPlacement::Slots(owners) = placed { Some(owners) } else { None }))
    }

    /// The placement of the newest view, by slots or by keys; `None` if no member owns anything.
    ///
    /// # Errors
    ///
    /// As [`Observer::owner`].
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

/// Places views for an observer: one placement at a time, the one that the group serves.
struct ObserverPlacer {
    policy: Policy,
    by: PlacementParams,
    placer: Arc<Placer>,
}

impl ObserverPlacer {
    fn observed(&mut self, view: Arc<View>) -> ObservedView {
        let group = view.group_fingerprint();
        let placed = match (self.policy.serving(group), group) {
            (None, Some(group)) => Err(Error::from(&MemberRefusal::other_policy(&self.policy, group))),
            (Some(params), _) if view.active() >= self.policy.min_members as usize => {
                if self.by != params {
                    (self.placer, self.by) = (placer(&self.policy.group, params), params);
                }
                self.placer.place(&view).map(Some).map_err(|error| Error::from(&MemberRefusal::from(error)))
            }
            _ => Ok(None),
        };
        ObservedView { view, placed }
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "the backend showed no view of the group within the TTL; is it running?")
}
