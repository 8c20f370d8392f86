//! The export. Traces are sent from a separate thread through a bounded queue: a slow, hanging or unreachable collector causes dropped
//! spans, which are counted, and nothing else.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::SdkTracerProvider;
use shardwise::trace::{self, TraceParent};
use tokio::runtime::{Builder, Runtime};
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::{Layer, Registry};

use super::TraceEndpoint;
use super::carrier::Carrier;
use super::export_config::TraceExportConfig;
use super::exporter::BoundedProcessor;

/// How long the end of the process waits for the remaining spans.
const FAREWELL: Duration = Duration::from_secs(2);

pub(crate) struct RunningExport {
    provider: SdkTracerProvider,
    level: LevelFilter,
    /// The runtime of the requests.
    runtime: Runtime,
}

impl RunningExport {
    /// # Errors
    ///
    /// Which variable is wrong, or why TLS cannot be used.
    pub(super) fn begin(endpoint: &TraceEndpoint, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let asked = &TraceExportConfig::of(endpoint, variable)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("traces").enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let carrier = Carrier::new(asked, runtime.handle().clone())?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(carrier)
            .with_endpoint(asked.endpoint.as_str())
            .with_timeout(asked.within)
            .build()
            // The error may repeat the endpoint, which may contain a password.
            .map_err(|_| "the variables of OpenTelemetry cannot be used together".to_owned())?;
        let provider = SdkTracerProvider::builder().with_span_processor(BoundedProcessor::new(exporter)).build();
        trace::connect(SpanNames);
        Ok(Self { provider, level: asked.level, runtime })
    }

    /// Sends the remaining spans, and waits for a short time.
    pub(crate) fn end(self) {
        let Self { provider, runtime, .. } = self;
        if provider.shutdown_with_timeout(FAREWELL).is_err() {
            tracing::debug!("the last traces were not taken in time and are lost");
        }
        runtime.shutdown_background();
    }

    /// Exports only our own spans: log events within them may name an aggregate.
    pub(super) fn layer(&self) -> impl Layer<Registry> + Send + Sync + use<> {
        let level = self.level;
        let is_ours =
            filter_fn(move |metadata| metadata.is_span() && metadata.target().starts_with("shardwise") && *metadata.level() <= level);
        OpenTelemetryLayer::new(self.provider.tracer("shardwise"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(is_ours.with_max_level_hint(level))
    }
}

/// Implements the library's trace hooks with OpenTelemetry's span contexts.
struct SpanNames;

impl trace::Traces for SpanNames {
    fn continues(&self, span: &Span, parent: TraceParent) {
        // A span that is not exported has no parent either.
        let _ = span.set_parent(Context::new().with_remote_span_context(context(parent)));
    }

    fn links(&self, span: &Span, other: TraceParent) {
        span.add_link(context(other));
    }

    fn name_of(&self, span: &Span) -> Option<TraceParent> {
        let context = span.context();
        let span = context.span();
        let context = span.span_context();
        context.is_valid().then(|| TraceParent {
            trace_id: u128::from_be_bytes(context.trace_id().to_bytes()),
            span_id: u64::from_be_bytes(context.span_id().to_bytes()),
            sampled: context.is_sampled(),
        })
    }
}

fn context(parent: TraceParent) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(parent.trace_id.to_be_bytes()), SpanId::from_bytes(parent.span_id.to_be_bytes()));
    SpanContext::new(trace, span, TraceFlags::default().with_sampled(parent.sampled), true, TraceState::default())
}
