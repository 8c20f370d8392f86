//! The task that follows the group: it swaps the table after each change of the view, the claims or the operator's routes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::pending;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use shardwise_core::routing::RouteTable;
use shardwise_core::{Holders, PlacementParams, Placer, Replicas, View, ViewPlacement};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Routing;
use super::table::RouteState;
use crate::error::locked;
use crate::membership::placer;
use crate::requests::RouteStore;

/// At most one table is made in this time: changes that come together are one.
const MERGE_FOR: Duration = Duration::from_millis(5);
/// Up to this many points on the ring, a table waits until the successors of each slot are computed: some milliseconds. In larger groups
/// keys have width 1 for as long as that takes.
const QUICK_POINTS: u64 = 65_536;

/// The group as a caller follows it.
pub(crate) struct GroupFeed {
    /// The views, the present one first. It ends with its source.
    pub(crate) views: BoxStream<'static, Arc<View>>,
    /// The claims; `None` under eventual ownership, which has none.
    pub(crate) holders: Option<watch::Receiver<Holders>>,
    /// The operator's routes; `None` where they have no effect.
    pub(crate) routes: Option<RouteNotes>,
}

/// The note of routes, read at intervals and when it is known to have changed.
pub(crate) struct RouteNotes {
    pub(crate) store: RouteStore,
    pub(crate) every: Duration,
    pub(crate) noted: watch::Receiver<()>,
}

impl Routing {
    /// Follows the group from the first call on, and returns whether it does: the first call needs a tokio runtime. The table is there once
    /// this returns, if the group is known.
    pub(crate) fn is_following(self: &Arc<Self>) -> bool {
        if self.following.get().is_some() {
            return true;
        }
        if Handle::try_current().is_err() {
            return false;
        }
        self.following.get_or_init(|| {
            let Some(mut feed) = locked(&self.feed).take() else { return };
            let view = feed.views.next().now_or_never().flatten().unwrap_or_default();
            let mut kept = None;
            self.swap_quickly(&view, feed.holders.as_mut(), &mut kept);
            if let Some(notes) = feed.routes.take() {
                tokio::spawn(follow_routes(notes, Arc::downgrade(self)));
            }
            tokio::spawn(follow(feed, view, kept, Arc::downgrade(self)));
        });
        true
    }

    /// Swaps to the table of that view, without successors.
    fn swap_quickly(&self, view: &Arc<View>, holders: Option<&mut watch::Receiver<Holders>>, kept: &mut Option<Arc<Placer>>) {
        match holders {
            Some(holders) => {
                let before = self.state.load();
                let slots = self.policy.placement.slots;
                self.swap(RouteState::exclusive(Arc::clone(view), slots, &holders.borrow_and_update(), &before.table));
            }
            None => self.swap_eventual(view, self.placed(view, kept).as_ref(), None),
        }
    }

    /// Swaps to the table of that view.
    async fn swap_to(&self, view: &Arc<View>, holders: Option<&mut watch::Receiver<Holders>>, kept: &mut Option<Arc<Placer>>) {
        if holders.is_some() || !self.is_spread() {
            return self.swap_quickly(view, holders, kept);
        }
        let placed = self.placed(view, kept);
        let Some(params) = kept.as_ref().map(|placer| *placer.params()).filter(|_| placed.is_some()) else {
            return self.swap_eventual(view, placed.as_ref(), None);
        };
        if points(view, params) > QUICK_POINTS {
            self.swap_eventual(view, placed.as_ref(), None);
        }
        let (ranked, most) = (Arc::clone(view), usize::from(self.max_width.get()));
        // It may take long, so it runs on a blocking thread.
        let successors = tokio::task::spawn_blocking(move || Replicas::of_view(&ranked, params, most)).await.ok();
        self.swap_eventual(view, placed.as_ref(), successors.as_ref());
    }

    /// The placement of a view; `None` while no member owns anything. `kept` keeps the placer, and with it the ring, until the next view.
    fn placed(&self, view: &View, kept: &mut Option<Arc<Placer>>) -> Option<ViewPlacement> {
        let params = self.policy.serving(view.group_fingerprint()).filter(|_| view.active() >= self.policy.min_members as usize)?;
        kept.insert(placer(&self.policy.group, params)).place(view).ok()
    }

    fn swap_eventual(&self, view: &Arc<View>, placed: Option<&ViewPlacement>, successors: Option<&Replicas>) {
        let before = self.state.load();
        self.swap(RouteState::eventual(RouteTable::eventual(Arc::clone(view), placed, successors, Some(&before.table))));
    }

    fn swap(&self, state: RouteState) {
        self.state.store(Arc::new(state));
        self.changed.send_replace(());
    }
}

fn points(view: &View, params: PlacementParams) -> u64 {
    let weights: u64 = view.members().iter().map(|member| u64::from(member.weight.get())).sum();
    weights.saturating_mul(params.virtual_nodes.into())
}

async fn follow(mut feed: GroupFeed, mut view: Arc<View>, mut kept: Option<Arc<Placer>>, routing: Weak<Routing>) {
    // The first table has no successors yet.
    let mut is_due = routing.upgrade().is_some_and(|routing| routing.is_spread());
    loop {
        if !is_due {
            tokio::select! {
                next = feed.views.next() => match next {
                    Some(next) => view = next,
                    None => return,
                },
                () = changed(feed.holders.as_mut()) => {}
            }
        }
        is_due = false;
        let Some(routing) = routing.upgrade() else { return };
        routing.swap_to(&view, feed.holders.as_mut(), &mut kept).await;
        drop(routing);
        sleep(MERGE_FOR).await;
    }
}

/// Waits until the claims change.
async fn changed(holders: Option<&mut watch::Receiver<Holders>>) {
    if let Some(holders) = holders
        && holders.changed().await.is_ok()
    {
        return;
    }
    pending::<()>().await;
}

async fn follow_routes(mut notes: RouteNotes, routing: Weak<Routing>) {
    let mut complaint = None;
    loop {
        let read = notes.store.routes().await;
        let Some(routing) = routing.upgrade() else { return };
        match read {
            Ok(routes) => {
                complaint = None;
                if **routing.routes.load() != routes {
                    let number = routes.iter().count();
                    tracing::info!(policy = %routing.policy.name, routes = number, "the operator's routes of keys have changed");
                    routing.routes.store(Arc::new(routes));
                    routing.changed.send_replace(());
                }
            }
            // Outages are logged by what follows the members.
            Err(error) if error.is_retryable() => {}
            Err(error) => {
                let said = Some(error.to_string());
                if complaint != said {
                    let policy = &routing.policy.name;
                    tracing::warn!(%policy, %error, "the operator's routes cannot be read; those of before stay in force");
                    complaint = said;
                }
            }
        }
        drop(routing);
        tokio::select! {
            () = sleep(notes.every) => {}
            changed = notes.noted.changed() => if changed.is_err() { return },
        }
    }
}
