//! Spans that the library opens, as an application's subscriber hears them. The
//! subscriber and what is connected are the process's: one test, alone in its file.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

#[path = "common/channel.rs"]
mod channel;
#[expect(dead_code, reason = "each test file uses its part")]
mod common;
#[path = "common/http2.rs"]
mod http2;

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use shardwise::Incarnation;
use shardwise::requests::{Attempt, MemberEndpoint, Request};
use shardwise::trace::{self, TraceParent, Traces};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Instrument as _, Span, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use channel::{LONG, Side, Whom};
use common::World;

/// A line for each span, `name < parent: field=value …`, and for what was recorded later.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn line(&self, start: &str) -> Option<String> {
        self.0.lock().unwrap().iter().find(|line| line.starts_with(start)).cloned()
    }

    fn note(&self, start: String, fields: impl FnOnce(&mut dyn FnMut(&Field, &dyn Debug))) {
        let mut line = start;
        fields(&mut |field, value| {
            // Writing to a String cannot fail.
            let _ = write!(line, " {field}={value:?}");
        });
        self.0.lock().unwrap().push(line);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Heard {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        // HTTP/2 has spans for each frame.
        if !is_ours(attributes.metadata().target()) {
            return;
        }
        let span = context.span(id).unwrap();
        let parent = span.parent().map_or("nothing", |parent| parent.name());
        self.note(format!("{} < {parent}:", span.name()), |mut write| attributes.record(&mut write));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        if is_ours(span.metadata().target()) {
            self.note(format!("{} says", span.name()), |mut write| values.record(&mut write));
        }
    }
}

fn is_ours(target: &str) -> bool {
    target.starts_with("shardwise") || target.starts_with("traces")
}

/// Which span goes on with which of another process.
#[derive(Clone, Default)]
struct Connected(Arc<Mutex<Vec<TraceParent>>>);

impl Traces for Connected {
    fn continues(&self, span: &Span, parent: TraceParent) {
        assert_eq!(span.metadata().unwrap().name(), "request");
        self.0.lock().unwrap().push(parent);
    }

    fn links(&self, _: &Span, _: TraceParent) {}

    fn name_of(&self, _: &Span) -> Option<TraceParent> {
        Some(TraceParent { trace_id: 1, span_id: 2, sampled: true })
    }
}

#[tokio::test]
async fn joins_calls_and_requests_are_spans_and_a_callers_trace_goes_on() {
    let (heard, connected) = (Heard::default(), Connected::default());
    tracing_subscriber::registry().with(heard.clone()).init();
    assert_eq!(trace::name_of(&tracing::info_span!("unconnected")), None);
    assert!(trace::connect(connected.clone()) && !trace::connect(Connected::default()), "only the first one counts");
    assert_eq!(trace::name_of(&Span::none()), None, "a span that nobody hears has no name");
    assert!(trace::name_of(&tracing::info_span!("connected")).is_some());

    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    let within = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&within);
    one.on_request("deep/within", move |_: Request| {
        *seen.lock().unwrap() = Span::current().metadata().map(tracing::Metadata::name);
        async { "answered" }
    })
    .unwrap();
    let at = one.listen_for_requests().await.unwrap();
    one.register_self().await.unwrap();
    let join = heard.line("join < nothing:").unwrap();
    assert!(join.contains("shardwise.policy=workers") && join.contains("shardwise.instance=one"), "{join}");
    let register = heard.line("backend < join: otel.name=\"memory register\"").unwrap();
    assert!(register.contains("shardwise.operation=\"register\"") && register.contains("otel.kind=\"client\""), "{register}");
    let rebalance = heard.line("rebalance < join:").unwrap();
    assert!(rebalance.contains("shardwise.cause=\"joined\"") && rebalance.contains("shardwise.gained=16384"), "{rebalance}");

    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let there = Whom::of(&one);
    let elsewhere = Whom { incarnation: Incarnation::new(1), ..there.clone() };
    let refused = channel::open(&at.to_string(), &elsewhere, None).await.err().unwrap();
    assert!(refused.to_string().contains("somebody_else"), "{refused}");
    assert!(heard.line("request <").is_none(), "whoever is not let in has no part in what is recorded");
    let client = http2::client(channel::open(&at.to_string(), &there, None).await.unwrap().plain(Side::Caller)).await;
    let headers = [("shardwise-to", "instance"), ("traceparent", parent), ("x-secret", "of-the-caller")];
    let answer = http2::ask(&client, ("GET", "deep/within?q=of-the-caller"), &headers, "").await.unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (200, "answered"));
    assert_eq!(*within.lock().unwrap(), Some("request"), "a handler's own spans are below it");
    let continued = || connected.0.lock().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(continued(), [parent]);
    let request = heard.line("request <").unwrap();
    assert!(request.contains("http.route=\"/{*path}\"") && request.contains("http.request.method=\"GET\""), "{request}");
    assert!(heard.line("request says").unwrap().contains("http.response.status_code=200"));
    // A request of a member carries the span in which it is asked.
    let two = world.factory("two").create("workers").unwrap();
    let endpoint = MemberEndpoint { instance_id: there.instance_id, incarnation: there.incarnation, address: format!("tcp://{at}") };
    let (status, attempt) = (Request::get("status"), Attempt::until(tokio::time::Instant::now() + LONG));
    let connections = two.connections();
    connections.bring(&endpoint, &status, &attempt).instrument(tracing::info_span!("asking")).await.unwrap();
    let carried = TraceParent { trace_id: 1, span_id: 2, sampled: true }.to_string();
    assert_eq!(continued(), [parent, carried.as_str()]);

    one.deregister_self().await.unwrap();
    assert!(heard.line("leave <").is_some() && heard.line("backend < leave: otel.name=\"memory deregister\"").is_some());
    let all = heard.0.lock().unwrap().join("\n");
    assert!(!all.contains("of-the-caller") && !all.contains("deep/within"), "{all}");
}
