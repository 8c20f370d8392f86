//! Traces of the publisher's work: reading, sending and marking. The only data of an event in them is the span in which it was written
//! (`traceparent` in the column `headers`); the span of its send has a link to it.

use serde::Deserialize;
use shardwise::trace::{self, TraceParent};
use tracing::{Span, field};

use super::jobs::JobOutcome;
use crate::Delivery;
use crate::decide::{EngineInput, StoreCall};

/// The most events of a batch whose headers are read.
const LINKS_MAX: usize = 32;

/// The span of a call to the store. Calls that happen all the time, even without events, are at debug level.
pub(super) fn call(call: StoreCall) -> Span {
    match call {
        StoreCall::Fetch => tracing::info_span!(
            "fetch",
            otel.name = "outbox fetch",
            otel.kind = "client",
            otel.status_code = field::Empty,
            "error.type" = field::Empty,
            "messaging.batch.message_count" = field::Empty,
            "shardwise.idle" = field::Empty
        ),
        StoreCall::Record => tracing::info_span!(
            "mark",
            otel.name = "outbox mark",
            otel.kind = "client",
            otel.status_code = field::Empty,
            "error.type" = field::Empty,
            "shardwise.fenced" = field::Empty
        ),
        StoreCall::Fence | StoreCall::ReadMark | StoreCall::Place | StoreCall::Sweep | StoreCall::Clean | StoreCall::Sleep => {
            tracing::debug_span!(
                "store",
                otel.name = format!("outbox {}", format!("{call:?}").to_lowercase()),
                otel.kind = "client",
                otel.status_code = field::Empty,
                "error.type" = field::Empty
            )
        }
    }
}

/// The span of a batch that is sent to the sink.
pub(super) fn send(sink: &str, batch: &[Delivery]) -> Span {
    // A sink's name begins with its kind.
    let (system, destination) = sink.split_once(' ').unwrap_or((sink, sink));
    let span = tracing::info_span!(
        "send",
        otel.name = format!("send {system}"),
        otel.kind = "producer",
        otel.status_code = field::Empty,
        "error.type" = field::Empty,
        "messaging.system" = system,
        "messaging.operation.name" = "send",
        "messaging.operation.type" = "send",
        "messaging.destination.name" = destination,
        "messaging.batch.message_count" = batch.len(),
        "shardwise.refused" = field::Empty
    );
    if !span.is_disabled() {
        for writer in written_in(batch) {
            trace::links(&span, writer);
        }
    }
    span
}

/// Records the result in the span.
pub(super) fn done(span: &Span, done: &JobOutcome) {
    if span.is_disabled() {
        return;
    }
    match done {
        JobOutcome::Called(_, Err(error)) => trace::failed(span, &format!("{:?}", error.kind()).to_lowercase()),
        JobOutcome::Called(_, Ok(EngineInput::Fetched(fetched))) => {
            let events: usize = fetched.runs.iter().map(|run| run.events.len()).sum();
            span.record("messaging.batch.message_count", events).record("shardwise.idle", events == 0);
        }
        JobOutcome::Sent { accepted, unknown_end, .. } => {
            let refused = accepted.refusals().count();
            span.record("shardwise.refused", refused);
            if *unknown_end {
                trace::failed(span, "no_answer");
            } else if refused > 0 {
                trace::failed(span, "refused");
            }
        }
        JobOutcome::Called(_, Ok(EngineInput::Recorded { fenced })) => {
            span.record("shardwise.fenced", fenced.len());
        }
        JobOutcome::Called(_, Ok(_)) => {}
    }
}

#[derive(Deserialize)]
struct Headers {
    traceparent: Option<String>,
}

/// The spans in which the first events of a batch were written, without duplicates.
fn written_in(batch: &[Delivery]) -> Vec<TraceParent> {
    let headers = batch.iter().filter_map(|event| event.headers.as_deref()).take(LINKS_MAX);
    let named = headers.filter_map(|text| TraceParent::parse(&serde_json::from_str::<Headers>(text).ok()?.traceparent?));
    named.fold(Vec::new(), |mut writers, writer| {
        if !writers.contains(&writer) {
            writers.push(writer);
        }
        writers
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    fn event(headers: Option<&str>) -> Delivery {
        Delivery {
            id: "1".into(),
            aggregate_type: "order".into(),
            aggregate_id: "7".into(),
            event_type: "Placed".into(),
            payload: Payload::None,
            headers: headers.map(str::to_owned),
            created_at_unix_ms: 0,
            sequence: 1,
            replayed: None,
            slot: 0,
            epoch: 1,
            aggregate: 1,
        }
    }

    fn header(trace: u128) -> String {
        format!(r#"{{"tenant":"a","traceparent":"{}"}}"#, TraceParent { trace_id: trace, span_id: 7, sampled: true })
    }

    #[test]
    fn each_writer_is_named_once_and_only_so_many_events_are_looked_at() {
        let (one, other) = (header(1), header(2));
        let traces = |batch: &[Delivery]| written_in(batch).iter().map(|writer| writer.trace_id).collect::<Vec<_>>();
        assert_eq!(traces(&[event(Some(&one)), event(None), event(Some(&other)), event(Some(&one))]), [1, 2]);
        let many: Vec<_> = (1..=100).map(|trace| event(Some(&header(trace)))).collect();
        assert_eq!(traces(&many).len(), LINKS_MAX);
    }

    #[test]
    fn headers_that_name_no_span_are_passed_over() {
        for odd in ["", "{}", "[1]", r#"{"traceparent":7}"#, r#"{"traceparent":null}"#, r#"{"traceparent":"00-1-2-01"}"#] {
            assert_eq!(written_in(&[event(Some(odd))]), [], "{odd}");
        }
    }
}
