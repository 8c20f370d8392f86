//! Wraps OpenTelemetry's exporter: bounds the queue, counts dropped spans, and logs when the collector becomes unreachable and reachable
//! again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use opentelemetry::{Context, Key, KeyValue, Value};
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
/// The default and largest number of queued spans.
const QUEUED_MAX: usize = 2_048;
const QUEUED_BOUND: usize = 65_536;

/// The instance id under which this process has joined.
static INSTANCE: OnceLock<String> = OnceLock::new();

/// Sets the instance id under which this process joins, once it is known.
pub(crate) fn runs_as(instance_id: &str) {
    // A process has one instance id.
    let _ = INSTANCE.set(instance_id.to_owned());
}

/// The resource: from the environment, or else the name, the version and the instance id of this program.
fn resource() -> Resource {
    let said = Resource::builder().build();
    let is_said = |key: &'static str| said.get(&Key::new(key)).is_some_and(|value| !value.as_str().starts_with("unknown_service"));
    let ours = [
        ("service.name", Some("shardwise")),
        ("service.version", Some(env!("CARGO_PKG_VERSION"))),
        ("service.instance.id", INSTANCE.get().map(String::as_str)),
    ];
    let unsaid = ours.into_iter().filter(|(key, _)| !is_said(key)).filter_map(|(key, value)| Some(KeyValue::new(key, value?)));
    Resource::builder().with_attributes(unsaid).build()
}

fn count(outcome: &'static str, spans: usize) {
    metrics::counter!("shardwise_traces_spans_total", "outcome" => outcome).increment(spans as u64);
}

#[derive(Debug)]
pub(super) struct BoundedProcessor {
    inner: BatchSpanProcessor,
    queued: Arc<AtomicUsize>,
    most: usize,
}

impl BoundedProcessor {
    pub(super) fn new(mut exporter: Otlp) -> Self {
        let set = std::env::var(QUEUE).ok().and_then(|value| value.parse().ok());
        let most = set.unwrap_or(QUEUED_MAX).clamp(1, QUEUED_BOUND);
        let queued = Arc::<AtomicUsize>::default();
        let with_resource = move || {
            exporter.set_resource(&resource());
            exporter
        };
        let otlp = LazyLock::new(Box::new(with_resource) as Box<dyn FnOnce() -> Otlp + Send>);
        let exporter = Exporter { otlp, queued: Arc::clone(&queued), failing: AtomicBool::new(false) };
        let config = BatchConfigBuilder::default().with_max_queue_size(most).build();
        Self { inner: BatchSpanProcessor::builder(exporter).with_batch_config(config).build(), queued, most }
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        // A check that found nothing: it happens every second and is not worth exporting.
        if span.attributes.iter().any(|attribute| attribute.key.as_str() == "shardwise.idle" && attribute.value == Value::Bool(true)) {
            return;
        }
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            count("dropped", 1);
            return;
        }
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }
}

#[derive(Debug)]
struct Exporter {
    /// Gets its resource at the first export, because the instance id is known by then.
    otlp: LazyLock<Otlp, Box<dyn FnOnce() -> Otlp + Send>>,
    /// Reduced by the spans whose export has begun.
    queued: Arc<AtomicUsize>,
    failing: AtomicBool,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.queued.fetch_sub(spans, Ordering::Relaxed);
        let result = self.otlp.export(batch).await;
        count(if result.is_ok() { "sent" } else { "failed" }, spans);
        match &result {
            Ok(()) if self.failing.swap(false, Ordering::Relaxed) => tracing::info!("the collector takes traces again"),
            Err(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "the collector does not take traces; they are lost until it does, and nothing else is");
            }
            _ => {}
        }
        result
    }
}
