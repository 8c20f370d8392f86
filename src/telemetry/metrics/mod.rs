//! The metrics of a service, through the facade of the crate `metrics`: the application installs an exporter, and without one nothing is
//! counted. `docs/reference/metrics.md` is generated from this table, which a test checks.
//!
//! The exporter may be installed before or after a service is created; it sees what happens from then on. Queries of ownership are not
//! counted. Every metric has the label `policy`, and no label contains a key of the user.

mod meters;
mod requests;

use std::fmt::Write as _;

pub(crate) use meters::{Meters, kind_of, suspected};
pub(crate) use requests::RequestMeters;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Many values, which an exporter turns into quantiles or buckets.
    Histogram,
}

impl MetricKind {
    /// The name in the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name in Prometheus.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// Its unit, such as `seconds`.
    pub unit: &'static str,
    /// Its description.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
}

use MetricKind::{Counter, Gauge, Histogram};

const POLICY: &[&str] = &["policy"];
const CAUSE: &[&str] = &["policy", "cause"];
const STATE: &[&str] = &["policy", "state"];
const KIND: &[&str] = &["policy", "kind"];
const OUTCOME: &[&str] = &["policy", "kind", "outcome"];

macro_rules! metrics {
    ($($metric:ident: $name:literal, $kind:ident, $unit:literal, $labels:ident, $help:literal;)*) => {
        $(const $metric: Metric = Metric { name: $name, kind: $kind, unit: $unit, help: $help, labels: $labels };)*

        /// Every metric of a service.
        pub const METRICS: &[Metric] = &[$($metric),*];
    };
}

metrics! {
    SERVICE_STATE: "shardwise_state", Gauge, "none", STATE,
        "1 for the state in which this worker is, 0 for those in which it was";
    MEMBERS: "shardwise_members", Gauge, "members", STATE,
        "Members of the group by state, as this worker sees them; draining are those that leave, those that an operator has drained, and those whose worker does not work";
    SLOTS_OWNED: "shardwise_slots_owned", Gauge, "slots", POLICY,
        "Slots that this worker owns; none under a key placement";
    SLOTS_WANTED: "shardwise_slots_wanted", Gauge, "slots", POLICY,
        "Slots that the placement gives to this worker; with exclusive ownership it owns them once it holds their claims";
    VIEW_REVISION: "shardwise_view_revision", Gauge, "none", POLICY,
        "The backend's revision of the view of the group that this worker uses";
    VIEW_AGE: "shardwise_view_age_seconds", Gauge, "seconds", POLICY,
        "Time since that view was last proven current, updated at each renewal and failure; after two TTLs ownership ends";
    VIEW_FINGERPRINT: "shardwise_view_fingerprint", Gauge, "none", POLICY,
        "The first 48 bits of that view's fingerprint: workers that agree show the same number";
    REBALANCING_FROZEN: "shardwise_stands_still", Gauge, "none", POLICY,
        "1 while more members have vanished than `max_loss` allows, so that no worker takes over what they had (`shardwise confirm-loss`); 0 otherwise, and \
     while this worker is fenced or no member";
    REBALANCES: "shardwise_rebalances_total", Counter, "rebalances", CAUSE,
        "Changes of what this worker owns, by cause";
    SLOTS_GAINED: "shardwise_slots_gained_total", Counter, "slots", CAUSE,
        "Slots that came to this worker, by cause";
    SLOTS_LOST: "shardwise_slots_lost_total", Counter, "slots", CAUSE,
        "Slots that went from this worker, by cause";
    HANDOVER: "shardwise_handover_seconds", Histogram, "seconds", KIND,
        "With exclusive ownership, from the view that gives this worker slots until it holds all of them, others' drains included: kind is emergency if a \
     member had vanished without leaving, else graceful";
    RENEWAL: "shardwise_renewal_seconds", Histogram, "seconds", POLICY,
        "Duration of a successful renewal, from request to answer";
    DEADLINE_MARGIN: "shardwise_deadline_margin_seconds", Gauge, "seconds", POLICY,
        "How much was left until the deadline when the last renewal was answered; at 0 this worker stops owning";
    FENCES_REFUSED: "shardwise_fences_refused_total", Counter, "questions", POLICY,
        "Calls of `fence`, `enter` and `run_exclusive` that were refused because this worker does not own the key";
    DISCOVERY_ERRORS: "shardwise_discovery_errors_total", Counter, "errors", KIND,
        "Failures of the discovery backend, calls and watches, by kind";
    OVERLAPS: "shardwise_overlaps_total", Counter, "guards", POLICY,
        "Slots and names that were given away while work in them still ran (`on_drain_timeout = \"release\"`)";
    WORKER_WORKS: "shardwise_worker_works", Gauge, "none", POLICY,
        "1 while the worker that this member speaks for works, 0 until it was seen and while its checks fail (`service.health`, `serve --worker-health`)";
    HEALTH_SPARED: "shardwise_health_spared", Gauge, "none", POLICY,
        "1 while the worker's checks fail and it keeps its share, because fewer than half of the group would stay active without it";
    WORKER_SUSPECTED: "shardwise_worker_suspected_total", Counter, "reports", POLICY,
        "Reports of callers that this worker does not answer (`shardwise/suspect`); each only brings the next check forward";
    REQUESTS: "shardwise_requests_total", Counter, "requests", OUTCOME,
        "Requests that this worker has sent (`ask`, `tell`), by destination (owner, holder, member, session, any) and outcome: answered, busy, too_late, no_route, \
     barred, invalid, unknown, or dropped by the caller";
    REQUESTS_WAITING: "shardwise_requests_waiting", Gauge, "requests", POLICY,
        "Requests of this worker that wait for an answer";
    REQUESTS_REFUSED: "shardwise_requests_refused_total", Counter, "requests", KIND,
        "Requests that this worker has refused: busy, or not_mine, which their sender brings to another member";
    REQUESTS_UNFINISHED: "shardwise_requests_unfinished_total", Counter, "requests", POLICY,
        "Requests that this worker had accepted, whose sender does not wait (`tell`), and that were not handled to their end: the slot or the session was \
     lost, the handler panicked or took too long, or the worker left; the log has the cause";
    LOAD: "shardwise_load", Gauge, "none", POLICY,
        "The load that this worker reports to callers, read once a second: its requests in progress, unless its code reports its own (`load`)";
    WIDE_KEYS: "shardwise_wide_keys", Gauge, "keys", POLICY,
        "Keys of this worker whose requests are spread over several members, because they are hot or by `widen`";
    SESSIONS_OPEN: "shardwise_sessions_open", Gauge, "sessions", POLICY,
        "Sessions that this worker has open";
    DRAIN_GUARD_AGE: "shardwise_drain_guard_age_seconds", Gauge, "seconds", POLICY,
        "Age of the oldest work that delays a handover, updated at each renewal; 0 without any";
}

/// Describes each metric to the installed exporter. Call it once after installing one that shows descriptions.
pub fn describe() {
    for metric in METRICS {
        let unit = (metric.unit == "seconds").then_some(::metrics::Unit::Seconds);
        ::metrics::with_recorder(|recorder| match metric.kind {
            Counter => recorder.describe_counter(metric.name.into(), unit, metric.help.into()),
            Gauge => recorder.describe_gauge(metric.name.into(), unit, metric.help.into()),
            Histogram => recorder.describe_histogram(metric.name.into(), unit, metric.help.into()),
        });
    }
}

/// The page `docs/reference/metrics.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Generated from the table `shardwise::metrics::METRICS`: do not edit it here. The library records through the facade of\n\
         the crate `metrics` and installs no exporter; `shardwise::metrics::describe()` passes these texts to the exporter that\n\
         the application has installed. Services that never join (`enabled = false`) record nothing. The outbox's own metrics\n\
         begin with `shardwise_outbox_`.\n\n\
         | name | kind | unit | labels | what it says |\n|---|---|---|---|---|\n",
    );
    for Metric { name, kind, unit, help, labels } in METRICS {
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| `{name}` | {} | {unit} | {labels} | {help} |", kind.as_str());
    }
    page
}
