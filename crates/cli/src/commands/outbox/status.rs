//! `shardwise outbox status`: the status of the outbox.

use serde_json::json;
use shardwise_outbox::Status;
use shardwise_outbox::settings::OutboxSettings;
use shardwise_outbox::store::{Stuck, StuckCause};

use super::open_store::OpenedStore;
use super::safe;
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{count, table_or};

pub(super) async fn run(outbox: &OutboxSettings, common: &Common) -> Result<Code> {
    let store = OpenedStore::open(outbox).await?;
    let status = store.shared().status().await?;
    store.close().await;
    let stuck = status.stuck(outbox.options.poll);
    common.print(&as_json(&status, &stuck), || {
        let seen = format!("the group of its publishers: shardwise members --policy {}\n", outbox.policy.as_str());
        let has_group = stuck.iter().any(|stuck| stuck.cause == StuckCause::NoPublisher) && !status.publishers.is_empty();
        in_words(&status, &stuck) + if has_group { &seen } else { "" }
    })?;
    Ok(if stuck.is_empty() { Code::Ok } else { Code::No })
}

fn as_json(status: &Status, stuck: &[Stuck]) -> serde_json::Value {
    let seconds = |duration: std::time::Duration| duration.as_secs_f64();
    json!({
        "stuck": stuck.iter().map(|stuck| json!({"cause": stuck.cause.as_str(), "detail": stuck.detail})).collect::<Vec<_>>(),
        "pending": status.pending,
        "unpublished": status.unpublished,
        "oldest_pending_age_seconds": status.oldest_pending_age.map(seconds),
        "blocked_aggregates": status.blocked_aggregates,
        "blocked": status.blocked.iter().map(|blocked| json!({
            "key": blocked.key, "pending": blocked.pending, "blocked_for_seconds": seconds(blocked.blocked_for), "error": blocked.error,
        })).collect::<Vec<_>>(),
        "retrying_aggregates": retrying(status),
        "retrying": status.retrying.as_ref().map(|retrying| json!({
            "pending": retrying.pending,
            "failing_for_seconds": seconds(retrying.failing_for),
            "next_attempt_in_seconds": seconds(retrying.next_attempt_in),
            "key": retrying.key,
            "failed_ago_seconds": seconds(retrying.failed_ago),
            "error": retrying.error,
        })),
        "parked": status.parked,
        "slots": status.slots,
        "free_slots": status.free_slots,
        "publishers": status.publishers.iter().map(|publisher| json!({
            "publisher": publisher.publisher, "incarnation": publisher.incarnation, "alive": publisher.alive,
            "seen_ago_seconds": publisher.seen_ago.map(seconds), "slots": publisher.slots,
        })).collect::<Vec<_>>(),
    })
}

fn retrying(status: &Status) -> u64 {
    status.retrying.as_ref().map_or(0, |retrying| retrying.aggregates)
}

fn in_words(status: &Status, stuck: &[Stuck]) -> String {
    let age = status.oldest_pending_age.map(|age| format!(", the oldest for {age:.1?}")).unwrap_or_default();
    let mut lines = vec![
        format!("{} pending{age}", count(status.pending, "event")),
        format!(
            "{} retrying, {} blocked, {} parked",
            count(retrying(status), "aggregate"),
            status.blocked_aggregates,
            count(status.parked, "event")
        ),
    ];
    if let Some(retrying) = &status.retrying {
        let next = if retrying.next_attempt_in.is_zero() { "due now".into() } else { format!("in {:.0?}", retrying.next_attempt_in) };
        let waiting = count(retrying.pending, "event");
        lines.push(format!("  retrying for {:.0?}, {waiting} waiting; the next attempt is {next}", retrying.failing_for));
        lines.push(format!("  last failed {:.0?} ago: {}: {}", retrying.failed_ago, safe(&retrying.key), retrying.error));
    }
    lines.extend(status.blocked.iter().map(|blocked| {
        format!("  blocked for {:.0?}: {} ({} pending): {}", blocked.blocked_for, safe(&blocked.key), blocked.pending, blocked.error)
    }));
    let rows = status.publishers.iter().map(|publisher| {
        let seen = publisher.seen_ago.map_or_else(|| "before a restart of the machine".into(), |ago| format!("{ago:.1?} ago"));
        vec![safe(&publisher.publisher), if publisher.alive { "alive" } else { "dead" }.into(), seen, publisher.slots.to_string()]
    });
    let heading = ["publisher", "is", "seen", "slots"];
    lines.push(table_or("no publisher", &heading, &rows.collect::<Vec<_>>()).trim_end().into());
    if status.blocked_aggregates > 0 {
        lines.push("when the cause is gone: shardwise outbox unblock".into());
    }
    if status.parked > 0 {
        lines.push("events set aside, and what to do with them: shardwise outbox list".into());
    }
    if status.free_slots > 0 {
        lines.push(format!("{} without a living publisher", count(status.free_slots.into(), "slot")));
    }
    lines.extend(stuck.iter().map(|stuck| format!("stuck: {}", stuck.detail)));
    lines.join("\n") + "\n"
}
