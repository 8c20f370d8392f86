//! What readers show of a group, and which events its watches deliver.

use std::sync::Arc;

use shardwise_core::{Moment, View};

use crate::{ClaimTable, ClaimsEvent, ViewSnapshot, WatchEvent};

/// A part of a group that is read and delivered to watches.
pub trait Watched: PartialEq + Send + Sync + 'static {
    /// The events of its watches.
    type Event: Send + 'static;
    /// Names the watch in errors.
    const OPERATION: &'static str;

    /// The event for a watch that has delivered `before` and now sees `now`; `None` if nothing is new.
    fn news(before: Option<&Self>, now: &Arc<Self>, proven: Moment) -> Option<Self::Event>;

    /// Nothing is new; the last state was still current at this moment.
    fn proven(at: Moment) -> Self::Event;
}

impl Watched for View {
    type Event = WatchEvent;
    const OPERATION: &'static str = "watch";

    fn news(_before: Option<&Self>, now: &Arc<Self>, proven: Moment) -> Option<WatchEvent> {
        Some(WatchEvent::View(ViewSnapshot { view: Arc::clone(now), proven }))
    }

    fn proven(at: Moment) -> WatchEvent {
        WatchEvent::Proven(at)
    }
}

/// A watch compares what it delivered with the present state, so that a slow watch leaves nothing out.
impl Watched for ClaimTable {
    type Event = ClaimsEvent;
    const OPERATION: &'static str = "watch_claims";

    fn news(before: Option<&Self>, now: &Arc<Self>, proven: Moment) -> Option<ClaimsEvent> {
        let Some(before) = before else { return Some(ClaimsEvent::All { claims: now.listed(), proven }) };
        let changes = before.changes_to(now);
        (!changes.is_empty()).then_some(ClaimsEvent::Changed { changes, proven })
    }

    fn proven(at: Moment) -> ClaimsEvent {
        ClaimsEvent::Proven(at)
    }
}
