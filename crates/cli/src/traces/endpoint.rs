//! Whether the environment requests traces.

pub(super) const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(super) const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// The endpoint for traces, from a variable. The address may contain a password.
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "this build says that it cannot export, wherever to"))]
pub(super) struct TraceEndpoint {
    pub(super) variable: &'static str,
    pub(super) address: String,
}

/// `None` if no traces are requested. An empty variable counts as not set.
pub(super) fn wanted(variable: &dyn Fn(&str) -> Option<String>) -> Option<TraceEndpoint> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || set("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none")
    {
        return None;
    }
    let whole = set(TRACES_ENDPOINT).map(|address| TraceEndpoint { variable: TRACES_ENDPOINT, address });
    whole.or_else(|| {
        let base = set(ENDPOINT)?;
        Some(TraceEndpoint { variable: ENDPOINT, address: format!("{}/v1/traces", base.trim_end_matches('/')) })
    })
}
