//! The trace options from the environment: OpenTelemetry's standard variables, and one of ours.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use tracing::level_filters::LevelFilter;

use super::TraceEndpoint;

/// The default and longest timeout of a request.
const WITHIN: Duration = Duration::from_secs(10);
const WITHIN_MAX: Duration = Duration::from_mins(1);

/// What to export, and where to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TraceExportConfig {
    pub(super) endpoint: Url,
    /// The timeout of a request, including its retries.
    pub(super) within: Duration,
    /// The CA that must have signed the collector's certificate; without it the machine's trusted CAs.
    pub(super) ca: Option<PathBuf>,
    pub(super) level: LevelFilter,
}

impl TraceExportConfig {
    /// # Errors
    ///
    /// Which variable is wrong. The endpoint is not repeated, because it may contain a password.
    pub(super) fn of((name, address): &TraceEndpoint, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        // An empty variable counts as not set.
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let either = |name: &str| {
            let [own, general] = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].map(|start| format!("{start}{name}"));
            set(&own).map(|value| (own, value)).or_else(|| set(&general).map(|value| (general, value)))
        };
        if let Some(other) = set("OTEL_TRACES_EXPORTER").filter(|exporter| exporter != "otlp") {
            return Err(format!("OTEL_TRACES_EXPORTER is {other:?}: write otlp or none"));
        }
        if let Some((name, other)) = either("PROTOCOL").filter(|(_, value)| value != "http/protobuf") {
            return Err(format!("{name} is {other:?}: write http/protobuf, which collectors take at port 4318"));
        }
        let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        let url = Url::parse(address).ok().filter(is_http);
        let endpoint = url.ok_or_else(|| format!("{name}: write it as http://HOST:4318"))?;
        let within = either("TIMEOUT").and_then(|(_, value)| value.parse().ok()).map_or(WITHIN, Duration::from_millis);
        let level = match set("SHARDWISE_TRACES").as_deref() {
            None | Some("info") => LevelFilter::INFO,
            Some("debug") => LevelFilter::DEBUG,
            Some(other) => return Err(format!("SHARDWISE_TRACES is {other:?}: write info or debug")),
        };
        let ca = either("CERTIFICATE").map(|(_, path)| path.into());
        Ok(Self { endpoint, within: within.clamp(Duration::from_millis(1), WITHIN_MAX), ca, level })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ENDPOINT, TRACES_ENDPOINT, wanted};
    use super::*;

    fn asked(variables: &[(&str, &str)]) -> Result<Option<TraceExportConfig>, String> {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        wanted(&variable).map(|endpoint| TraceExportConfig::of(&endpoint, &variable)).transpose()
    }

    #[test]
    fn nothing_is_exported_unless_an_endpoint_is_set() {
        for nothing in [
            &[][..],
            &[(ENDPOINT, "")],
            &[("OTEL_SERVICE_NAME", "a"), ("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_TRACES_EXPORTER", "otlp")],
            &[(ENDPOINT, "http://a:4318"), ("OTEL_SDK_DISABLED", "TRUE")],
            &[(ENDPOINT, "http://a:4318"), ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
        ] {
            assert_eq!(asked(nothing), Ok(None), "{nothing:?}");
        }
    }

    #[test]
    fn what_is_said_of_traces_comes_before_what_is_said_of_everything() {
        let endpoint = |variables: &[(&str, &str)]| asked(variables).unwrap().unwrap().endpoint.to_string();
        assert_eq!(endpoint(&[(ENDPOINT, "http://a:4318")]), "http://a:4318/v1/traces");
        assert_eq!(endpoint(&[(ENDPOINT, "https://a/otlp/")]), "https://a/otlp/v1/traces");
        assert_eq!(endpoint(&[(ENDPOINT, "http://a:4318"), (TRACES_ENDPOINT, "http://b:1/in")]), "http://b:1/in");
        let all = asked(&[
            (ENDPOINT, "http://a:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"),
            ("SHARDWISE_TRACES", "debug"),
        ]);
        let all = all.unwrap().unwrap();
        assert_eq!((all.within, all.ca, all.level), (Duration::from_millis(2_500), Some("ca.pem".into()), LevelFilter::DEBUG));
    }

    #[test]
    fn an_export_takes_neither_no_time_nor_for_ever() {
        let within = |value: &str| asked(&[(ENDPOINT, "http://a"), ("OTEL_EXPORTER_OTLP_TIMEOUT", value)]).unwrap().unwrap().within;
        assert_eq!([within("0"), within("soon"), within("99999999999")], [Duration::from_millis(1), WITHIN, WITHIN_MAX]);
    }

    #[test]
    fn what_is_wrong_is_said_and_no_password() {
        for (name, value, expected) in [
            (ENDPOINT, "localhost:4318", "http://HOST:4318"),
            (ENDPOINT, "ftp://user:hunter2@a", "http://HOST:4318"),
            (TRACES_ENDPOINT, "http://", "http://HOST:4318"),
            ("OTEL_TRACES_EXPORTER", "console", "otlp"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
            ("SHARDWISE_TRACES", "trace", "debug"),
        ] {
            let why = asked(&[(name, value), (ENDPOINT, "http://a:4318")]).unwrap_err();
            assert!(why.contains(name) && why.contains(expected) && !why.contains("hunter2"), "{why}");
        }
    }
}
