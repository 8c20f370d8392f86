//! The progress of a publisher: a status line on a terminal, JSON lines elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use shardwise::ShardingService;
use shardwise_outbox::{PublisherSnapshot, PublisherStats, Trouble};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::exit::Result;
use crate::output::{self, Format, count};
use crate::status_line;

/// How often the terminal's line is drawn.
const DRAWN_EVERY: Duration = Duration::from_secs(1);
/// The least time between two JSON lines.
const LINES_APART: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountsDisplay {
    StatusLine,
    /// JSON lines on stderr, because the sink `stdout` writes events to stdout.
    JsonOnStderr,
    JsonOnStdout,
    Nowhere,
}

impl CountsDisplay {
    /// With `--listen` the metrics have the counts, so they are printed only if requested.
    pub(super) fn of(format: Format, sink_is_stdout: bool, listens: bool) -> Self {
        let events_on_terminal = sink_is_stdout && io::stdout().is_terminal();
        let is_drawn = format == Format::Human && status_line::is_possible();
        if is_drawn && !events_on_terminal {
            Self::StatusLine
        } else if is_drawn || (format == Format::Human && listens) {
            Self::Nowhere
        } else if sink_is_stdout {
            Self::JsonOnStderr
        } else {
            Self::JsonOnStdout
        }
    }

    /// Shows the counts until the handle is dropped.
    pub(super) fn show(self, stats: PublisherStats, sharding: ShardingService) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(async move {
            match self {
                Self::Nowhere => {}
                Self::StatusLine => draw(&stats, &sharding).await,
                Self::JsonOnStdout => print(&stats, &sharding, output::json_line).await,
                Self::JsonOnStderr => print(&stats, &sharding, output::json_note).await,
            }
        }))
    }
}

async fn draw(stats: &PublisherStats, sharding: &ShardingService) {
    let mut ticks = interval(DRAWN_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut at) = (stats.snapshot().delivered, Instant::now());
    loop {
        ticks.tick().await;
        let now = stats.snapshot();
        let rate = (now.delivered - before) as f64 / at.elapsed().as_secs_f64().max(f64::EPSILON);
        (before, at) = (now.delivered, Instant::now());
        status_line::draw(&[in_words(&now, rate, sharding)]);
    }
}

fn in_words(now: &PublisherSnapshot, rate: f64, sharding: &ShardingService) -> String {
    let mut parts = vec![
        format!("{}: {}", sharding.instance_id(), sharding.state().as_str()),
        format!("{} of {} slots", now.held_slots, sharding.policy().placement.slots),
    ];
    // Before the counts, because a narrow terminal cuts the end.
    parts.extend(now.last_error.as_ref().map(|error| format!("failing: {error}")));
    parts.push(format!("{} delivered ({rate:.0}/s)", count(now.delivered, "event")));
    let rare = [("retried", now.retried), ("blocked", now.blocked), ("parked", now.parked), ("discarded", now.discarded)];
    parts.extend(rare.iter().filter(|(_, number)| *number > 0).map(|(what, number)| format!("{number} {what}")));
    parts.join(", ")
}

/// Prints the counts whenever they have changed, until a write fails. A full pipe does not delay publishing.
async fn print(stats: &PublisherStats, sharding: &ShardingService, write: fn(&Value) -> Result<()>) {
    let mut ticks = interval(LINES_APART);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        ticks.tick().await;
        let (now, state) = (stats.snapshot(), sharding.state());
        let line = json!({
            "at": humantime::format_rfc3339_millis(SystemTime::now()).to_string(), "instance_id": sharding.instance_id(),
            "state": state.as_str(), "held_slots": now.held_slots, "wanted_slots": now.wanted_slots, "delivered": now.delivered,
            "repeated": now.repeated, "retried": now.retried, "blocked": now.blocked, "parked": now.parked, "discarded": now.discarded,
            "fenced": now.fenced, "destination_down": now.destinations_down > 0, "destination_slow": now.destinations_slow > 0,
            "trouble": now.trouble.map(Trouble::as_str),
        });
        let now = Some((now, state));
        if before == now {
            continue;
        }
        before = now;
        match tokio::task::spawn_blocking(move || write(&line)).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return tracing::warn!(error = %failure, "the counts of this publisher are no longer printed"),
            Err(_) => return,
        }
    }
}
