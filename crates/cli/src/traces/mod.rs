//! Traces over OTLP, if OpenTelemetry's variables request them.

#[cfg(feature = "otel")]
mod carrier;
#[cfg(feature = "otel")]
mod export_config;
#[cfg(feature = "otel")]
mod exporter;
#[cfg(feature = "otel")]
mod otlp;

#[cfg(feature = "otel")]
pub(crate) use self::{exporter::runs_as, otlp::RunningExport};
use crate::output;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// The variable with the endpoint for traces, and the address, which may contain a password.
type TraceEndpoint = (&'static str, String);

/// `None` if no traces are requested. An empty variable counts as not set.
fn wanted(variable: &dyn Fn(&str) -> Option<String>) -> Option<TraceEndpoint> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || set("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none")
    {
        return None;
    }
    let whole = set(TRACES_ENDPOINT).map(|address| (TRACES_ENDPOINT, address));
    whole.or_else(|| Some((ENDPOINT, format!("{}/v1/traces", set(ENDPOINT)?.trim_end_matches('/')))))
}

/// Starts the log, and the export of traces if the process `serves` and the environment requests it. Wrong variables are only logged: other
/// programs use the same variables, and they must not keep a worker from starting.
pub(crate) fn begin(serves: bool) -> Option<RunningExport> {
    let variable = |name: &str| std::env::var(name).ok();
    let endpoint = if serves { wanted(&variable) } else { None };
    let (running, why_not) = match endpoint.map(|endpoint| RunningExport::begin(&endpoint, &variable)).transpose() {
        Ok(running) => (running, None),
        Err(why) => (None, Some(why)),
    };
    output::start_log(running.as_ref().map(RunningExport::layer));
    if let Some(why) = why_not {
        tracing::warn!(why, "no traces are exported");
    }
    running
}

/// Replaces the export in a build without the feature `otel`: it never begins.
#[cfg(not(feature = "otel"))]
pub(crate) enum NoExport {}

#[cfg(not(feature = "otel"))]
pub(crate) use NoExport as RunningExport;

#[cfg(not(feature = "otel"))]
impl NoExport {
    fn begin(_: &TraceEndpoint, _: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        Err(crate::features::missing("otel").unwrap_or_default())
    }

    fn layer(&self) -> tracing_subscriber::layer::Identity {
        match *self {}
    }

    pub(crate) fn end(self) {
        match self {}
    }
}

/// Only an export needs the instance id.
#[cfg(not(feature = "otel"))]
pub(crate) fn runs_as(_: &str) {}
