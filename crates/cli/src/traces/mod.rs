//! Traces over OTLP, where the variables of OpenTelemetry ask for them.

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

/// What exports traces, if something does.
pub(crate) struct TraceExport(Option<RunningExport>);

impl TraceExport {
    /// Starts the log, and traces beside it if the process is one that `serves` and the environment asks for them. What is wrong there is a line in the log:
    /// the same variables are there for other programs too, and they must not keep a worker from starting.
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

    /// Sends what there is, and waits for that a short while.
    pub(crate) fn end(self) {
        if let Some(running) = self.0 {
            running.end();
        }
    }
}
