//! What stands around OpenTelemetry's own exporter: a bound that counts what it turns away, and a word in the log when the collector is gone and when it is
//! back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use opentelemetry::{Context, Key, KeyValue, Value};
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
/// So many spans wait unless that is set, and at most.
const QUEUED_MOST: usize = 2_048;
const QUEUED_BOUND: usize = 65_536;
const INSTANCE_ID: &str = "service.instance.id";

/// The instance as which this process has joined.
static INSTANCE: OnceLock<String> = OnceLock::new();

/// Says as which instance this process joins, once that is known.
pub(crate) fn runs_as(instance_id: &str) {
    // One process is one instance.
    let _ = INSTANCE.set(instance_id.to_owned());
}

fn count(outcome: &'static str, spans: usize) {
    metrics::counter!("shardwise_traces_spans_total", "outcome" => outcome).increment(spans as u64);
}

/// Takes in so many spans and no more.
#[derive(Debug)]
pub(super) struct BoundedProcessor {
    inner: BatchSpanProcessor,
    queued: Arc<AtomicUsize>,
    most: usize,
}

impl BoundedProcessor {
    /// Before an exporter that takes off `queued` what it has begun to export.
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
        // A look at which there was nothing: once a second for ever, and of no interest to anybody.
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

/// Exports, counts, and tells.
#[derive(Debug)]
pub(super) struct Exporter {
    /// Until the first export, because by then it is known who this is.
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

    /// The resource, with the instance unless the environment has named one.
    fn named(&self) -> Resource {
        let attributes = self.resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        let named = Resource::builder_empty().with_attributes(attributes);
        match INSTANCE.get().filter(|_| self.resource.get(&Key::new(INSTANCE_ID)).is_none()) {
            Some(instance) => named.with_attribute(KeyValue::new(INSTANCE_ID, instance.clone())).build(),
            None => named.build(),
        }
    }

    fn told(&self, result: &OTelSdkResult, spans: usize) {
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
        self.told(&result, spans);
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.clone();
    }
}
