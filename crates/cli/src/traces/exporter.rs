//! Wraps OpenTelemetry's exporter: bounds the queue, counts dropped spans, and logs when the collector becomes unreachable and reachable
//! again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use opentelemetry::{Context, Key, KeyValue, Value};
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
/// The default and largest number of queued spans.
const QUEUED_MOST: usize = 2_048;
const QUEUED_BOUND: usize = 65_536;
const INSTANCE_ID: &str = "service.instance.id";

/// The instance id under which this process has joined.
static INSTANCE: OnceLock<String> = OnceLock::new();

/// Sets the instance id under which this process joins, once it is known.
pub(crate) fn runs_as(instance_id: &str) {
    // A process has one instance id.
    let _ = INSTANCE.set(instance_id.to_owned());
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
    /// Creates the processor for an exporter that reduces `queued` by the spans it has begun to export.
    pub(super) fn new<E: SpanExporter + 'static>(exporter: impl FnOnce(Arc<AtomicUsize>) -> E) -> Self {
        let set = std::env::var(QUEUE).ok().and_then(|value| value.parse().ok());
        let most = set.unwrap_or(QUEUED_MOST).clamp(1, QUEUED_BOUND);
        let queued = Arc::<AtomicUsize>::default();
        let config = BatchConfigBuilder::default().with_max_queue_size(most).build();
        let inner = BatchSpanProcessor::builder(exporter(Arc::clone(&queued))).with_batch_config(config).build();
        Self { inner, queued, most }
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

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[derive(Debug)]
pub(super) struct Exporter {
    /// Created at the first export, because the instance id is known by then.
    made: Mutex<Option<Otlp>>,
    resource: Resource,
    ready: OnceLock<Option<Otlp>>,
    queued: Arc<AtomicUsize>,
    failing: AtomicBool,
}

impl Exporter {
    pub(super) fn new(exporter: Otlp, queued: Arc<AtomicUsize>) -> Self {
        Self {
            made: Mutex::new(Some(exporter)),
            resource: Resource::builder_empty().build(),
            ready: OnceLock::new(),
            queued,
            failing: AtomicBool::new(false),
        }
    }

    fn ready(&self) -> Option<&Otlp> {
        let ready = || {
            let mut exporter = self.made.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            exporter.set_resource(&self.named());
            Some(exporter)
        };
        self.ready.get_or_init(ready).as_ref()
    }

    /// The resource, with the instance id unless the environment sets one.
    fn named(&self) -> Resource {
        let attributes = self.resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        let named = Resource::builder_empty().with_attributes(attributes);
        match INSTANCE.get().filter(|_| self.resource.get(&Key::new(INSTANCE_ID)).is_none()) {
            Some(instance) => named.with_attribute(KeyValue::new(INSTANCE_ID, instance.clone())).build(),
            None => named.build(),
        }
    }

    fn log(&self, result: &OTelSdkResult, spans: usize) {
        count(if result.is_ok() { "sent" } else { "failed" }, spans);
        match result {
            Ok(()) if self.failing.swap(false, Ordering::Relaxed) => tracing::info!("the collector takes traces again"),
            Err(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "the collector does not take traces; they are lost until it does, and nothing else is");
            }
            _ => {}
        }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.queued.fetch_sub(spans, Ordering::Relaxed);
        let Some(exporter) = self.ready() else { return Err(OTelSdkError::AlreadyShutdown) };
        let result = exporter.export(batch).await;
        self.log(&result, spans);
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.clone();
    }
}
