//! Metrics and traces: what a service reports of itself, through facades for which the application installs an exporter.

pub mod metrics;
pub mod trace;
