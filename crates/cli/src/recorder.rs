//! The content of `/metrics`: the process's metrics in Prometheus' text format.

use shardwise_sidecar::Render;

use crate::exit::Result;

/// Records metrics from now on, so it must be called before any code requests its counters. Histograms have the upper bounds `buckets`, in
/// seconds; without buckets they are summaries. `None` in a build without the feature `prometheus`, which the log then mentions.
#[cfg(feature = "prometheus")]
pub(crate) fn install(buckets: &[f64]) -> Result<Option<Render>> {
    use std::time::Duration;

    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    use crate::exit::{CliFailure, Code};

    /// How often recorded histograms are compacted; until then they grow, even if they are never read.
    const UPKEEP_EVERY: Duration = Duration::from_secs(5);

    let builder = match buckets {
        [] => Ok(PrometheusBuilder::new()),
        _ => PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), buckets),
    };
    let handle = builder.and_then(PrometheusBuilder::install_recorder);
    let handle = handle.map_err(|error| CliFailure::new(Code::Refused, format!("the metrics cannot be set up: {error}")))?;
    let upkeep = handle.clone();
    let kept_up = std::thread::Builder::new().name("metrics".into()).spawn(move || {
        loop {
            std::thread::sleep(UPKEEP_EVERY);
            upkeep.run_upkeep();
        }
    });
    kept_up.map_err(|error| CliFailure::io("start the thread of the metrics", &error))?;
    Ok(Some(Box::new(move || handle.render())))
}

#[cfg(not(feature = "prometheus"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
pub(crate) fn install(_buckets: &[f64]) -> Result<Option<Render>> {
    if let Some(why) = crate::features::missing("prometheus") {
        tracing::info!("there is no /metrics: {why}");
    }
    Ok(None)
}
