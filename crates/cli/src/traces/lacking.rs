//! Replaces the export of traces in a build without the feature `otel`: it never begins.

use tracing_subscriber::layer::Identity;

use super::endpoint::TraceEndpoint;
use crate::features;

pub(super) enum NoExport {}

impl NoExport {
    /// # Errors
    ///
    /// Always: the message names the missing feature.
    pub(super) fn begin(_: &TraceEndpoint, _: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        Err(features::missing("otel").unwrap_or_default())
    }

    pub(super) fn layer(&self) -> Identity {
        match *self {}
    }

    pub(super) fn end(self) {
        match self {}
    }
}

/// Only an export needs the instance id.
pub(crate) fn runs_as(_: &str) {}
