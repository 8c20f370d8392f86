//! Spans that the library opens, as an application's subscriber hears them. The
//! subscriber and what is connected are the process's: one test, alone in its file.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

#[expect(dead_code, reason = "each test file uses its part")]
mod common;

use std::fmt::{Debug, Write as _};
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use shardwise::requests::Request;
use shardwise::trace::{self, TraceParent, Traces};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Span, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

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
        let span = context.span(id).unwrap();
        let parent = span.parent().map_or("nothing", |parent| parent.name());
        self.note(format!("{} < {parent}:", span.name()), |mut write| attributes.record(&mut write));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.note(format!("{} says", context.span(id).unwrap().name()), |mut write| values.record(&mut write));
    }
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

async fn ask(at: SocketAddr, path: String, headers: String) -> String {
    let exchange = move || {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
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

    let parent = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
    let caller = format!("traceparent: 00-{parent}-01\r\nx-secret: of-the-caller\r\n");
    let path = format!("{}deep/within?q=of-the-caller", one.requests_path());
    let refused = ask(at, path.clone(), caller.clone()).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(connected.0.lock().unwrap().is_empty(), "whoever is not let in has no part in what is recorded");
    let answer = ask(at, path, format!("{caller}shardwise-peer: 1\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("answered"), "{answer}");
    assert_eq!(*within.lock().unwrap(), Some("request"), "a handler's own spans are below it");
    assert_eq!(connected.0.lock().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>(), [format!("00-{parent}-01")]);
    let request = heard.line("request <").unwrap();
    assert!(request.contains("http.route=\"/v1/peers/{*path}\"") && request.contains("http.request.method=\"GET\""), "{request}");
    assert!(heard.line("request says").unwrap().contains("http.response.status_code=200"));

    one.deregister_self().await.unwrap();
    assert!(heard.line("leave <").is_some() && heard.line("backend < leave: otel.name=\"memory deregister\"").is_some());
    let all = heard.0.lock().unwrap().join("\n");
    assert!(!all.contains("of-the-caller") && !all.contains("deep/within"), "{all}");
}
