//! Where the primary is: at the address of the settings, or where Sentinels say. They are asked before each connection.

use std::sync::atomic::AtomicUsize;

use shardwise_discovery::tls::TlsFiles;
use shardwise_discovery::valkey::{SentinelFailure, SentinelTarget, ValkeyAddress};

use crate::dial::meaning_of;
use crate::error::{Failure, ServerContext, ValkeyResult};

/// Who says where the primary is.
#[derive(Debug, Clone)]
pub(crate) enum ServerTarget {
    Server(ValkeyAddress),
    Sentinels(SentinelTarget),
}

/// Finds the primary.
#[derive(Debug)]
pub(crate) struct ServerLocator {
    target: ServerTarget,
    /// How often the Sentinels were asked: if they are divided, they decide in turn.
    turn: AtomicUsize,
}

impl ServerLocator {
    pub(crate) const fn new(target: ServerTarget) -> Self {
        Self { target, turn: AtomicUsize::new(0) }
    }

    /// The servers of the settings, for people.
    pub(crate) fn places(&self) -> String {
        match &self.target {
            ServerTarget::Server(address) => address.to_string(),
            ServerTarget::Sentinels(target) => target.places(),
        }
    }

    pub(crate) const fn has_sentinels(&self) -> bool {
        matches!(self.target, ServerTarget::Sentinels(_))
    }

    /// The setting that an address comes from.
    pub(crate) const fn setting(&self) -> &'static str {
        match self.target {
            ServerTarget::Server(_) => "discovery.valkey.url",
            ServerTarget::Sentinels(_) => "discovery.valkey.sentinels",
        }
    }

    pub(crate) const fn uses_tls(&self) -> bool {
        match &self.target {
            ServerTarget::Server(address) => address.tls,
            ServerTarget::Sentinels(target) => target.tls,
        }
    }

    /// The hosts that passwords are sent to, as far as they are known.
    pub(crate) fn hosts(&self) -> Vec<&str> {
        match &self.target {
            ServerTarget::Server(address) => vec![address.host.as_str()],
            ServerTarget::Sentinels(target) => target.sentinels.iter().map(|address| address.host.as_str()).collect(),
        }
    }

    /// Where the primary is now.
    pub(crate) async fn locate(&self, files: &TlsFiles) -> ValkeyResult<ValkeyAddress> {
        let target = match &self.target {
            ServerTarget::Server(address) => return Ok(address.clone()),
            ServerTarget::Sentinels(target) => target,
        };
        target.locate(&self.turn, files).await.map_err(|failures| {
            let mut reported = None;
            for (sentinel, failure) in failures {
                let failure = meaning(target, &sentinel, failure);
                // What may pass by itself decides: then it is worth trying again.
                if reported.is_none() || failure.is_passing() {
                    reported = Some(failure);
                }
            }
            reported.unwrap_or_else(|| Failure::NoSentinel { why: "none is named".into() })
        })
    }
}

/// Why a Sentinel names no primary.
fn meaning(target: &SentinelTarget, sentinel: &ValkeyAddress, failure: SentinelFailure) -> Failure {
    let context = ServerContext {
        place: format!("the Sentinel {sentinel}"),
        setting: "discovery.valkey.sentinels",
        of: "sentinel_",
        username: target.login.username.clone(),
        prefix: String::new(),
        has_sentinels: true,
    };
    match failure {
        SentinelFailure::Silent(after) => Failure::NoSentinel { why: format!("{sentinel} is silent for {} ms", after.as_millis()) },
        SentinelFailure::Dial(failure) => unavailable(meaning_of(failure, &context)),
        SentinelFailure::Refused(error) => unavailable(context.meaning(&error)),
        SentinelFailure::UnknownMaster => Failure::UnknownMaster { name: target.master_name.clone() },
        SentinelFailure::Unreadable(answer) => Failure::NoSentinel { why: format!("{sentinel} names the primary as {answer}") },
    }
}

/// A Sentinel that is down is no fault that lasts.
fn unavailable(failure: Failure) -> Failure {
    match failure {
        Failure::Unreachable { place, why, .. } | Failure::Broken { place, why } => Failure::NoSentinel { why: format!("{place}: {why}") },
        // A server that is no Sentinel does not know the command.
        Failure::Refused { place, why } => Failure::NotValkey { place, setting: "discovery.valkey.sentinels", why },
        other => other,
    }
}
