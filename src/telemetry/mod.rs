//! Metrics and traces, through facades for which the application installs an exporter.

pub mod metrics;
pub mod trace;
