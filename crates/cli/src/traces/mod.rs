//! Traces over OTLP, if OpenTelemetry's variables request them.

#[cfg(feature = "otel")]
mod carrier;
mod endpoint;
#[cfg(feature = "otel")]
mod export_config;
#[cfg(feature = "otel")]
mod exporter;
#[cfg(not(feature = "otel"))]
mod lacking;
#[cfg(feature = "otel")]
mod otlp;

#[cfg(feature = "otel")]
pub(crate) use self::exporter::runs_as;
#[cfg(not(feature = "otel"))]
use self::lacking::NoExport as RunningExport;
#[cfg(not(feature = "otel"))]
pub(crate) use self::lacking::runs_as;
#[cfg(feature = "otel")]
use self::otlp::RunningExport;
use crate::output;

pub(crate) struct TraceExport(Option<RunningExport>);

impl TraceExport {
    /// Starts the log, and the export of traces if the process `serves` and the environment requests it. Wrong variables are only logged:
    /// other programs use the same variables, and they must not keep a worker from starting.
    pub(crate) fn begin(serves: bool) -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let endpoint = if serves { endpoint::wanted(&variable) } else { None };
        let (running, why_not) = match endpoint.map(|endpoint| RunningExport::begin(&endpoint, &variable)).transpose() {
            Ok(running) => (running, None),
            Err(why) => (None, Some(why)),
        };
        output::start_log(running.as_ref().map(RunningExport::layer));
        if let Some(why) = why_not {
            tracing::warn!(why, "no traces are exported");
        }
        Self(running)
    }

    /// Sends the remaining spans, and waits for a short time.
    pub(crate) fn end(self) {
        if let Some(running) = self.0 {
            running.end();
        }
    }
}
