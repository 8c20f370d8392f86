//! What readers show of a group, and what a watch tells of it.

use std::sync::Arc;

use shardwise_core::{Moment, View};

use crate::{ClaimTable, ClaimsEvent, ViewSnapshot, WatchEvent};

/// What of a group is read and told.
pub trait Watched: PartialEq + Send + Sync + 'static {
    /// What a watch tells of it.
    type Event: Send + 'static;
    /// Names the watch in errors.
    const OPERATION: &'static str;

    /// What a watch tells that has told `before` and now sees this; `None` if that is nothing new.
    fn news(before: Option<&Self>, now: &Arc<Self>, proven: Moment) -> Option<Self::Event>;

    /// Nothing is new; what was told was still current at this moment.
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

/// Whoever watches compares what it told with what is there now, so that a watch which is slow leaves nothing out.
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
