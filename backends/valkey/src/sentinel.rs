//! Where the primary is: at the address of the settings, or where Sentinels say. They are asked before each connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::PushInfo;
use shardwise_discovery::one_line;
use shardwise_discovery::tls::TlsFiles;
use tokio::time::timeout;

use crate::address::ValkeyAddress;
use crate::dial::{Login, dial};
use crate::error::{Failure, ServerContext, ValkeyResult};

/// How long one Sentinel may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// Who says where the primary is.
#[derive(Debug, Clone)]
pub(crate) enum ServerTarget {
    Server(ValkeyAddress),
    Sentinels(SentinelTarget),
}

/// A primary that Sentinels name.
#[derive(Debug, Clone)]
pub(crate) struct SentinelTarget {
    pub(crate) sentinels: Vec<ValkeyAddress>,
    /// They and the servers speak TLS.
    pub(crate) tls: bool,
    pub(crate) master_name: String,
    pub(crate) login: Login,
}

/// Finds the primary.
#[derive(Debug)]
pub(crate) struct ServerLocator {
    target: ServerTarget,
    /// The Sentinel that answered last.
    first: AtomicUsize,
}

impl ServerLocator {
    pub(crate) const fn new(target: ServerTarget) -> Self {
        Self { target, first: AtomicUsize::new(0) }
    }

    /// The servers of the settings, for people.
    pub(crate) fn places(&self) -> String {
        match &self.target {
            ServerTarget::Server(address) => address.to_string(),
            ServerTarget::Sentinels(target) => {
                let places: Vec<_> = target.sentinels.iter().map(ToString::to_string).collect();
                format!("{} by {}", target.master_name, places.join(", "))
            }
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
        let (first, mut reported) = (self.first.load(Ordering::Relaxed), None);
        for number in (first..target.sentinels.len()).chain(0..first) {
            let Some(sentinel) = target.sentinels.get(number) else { continue };
            let late = || Failure::NoSentinel { why: format!("{sentinel} is silent for {} ms", ASK_LIMIT.as_millis()) };
            match timeout(ASK_LIMIT, ask(sentinel, target, files)).await.unwrap_or_else(|_| Err(late())) {
                Ok(address) => {
                    self.first.store(number, Ordering::Relaxed);
                    return Ok(address);
                }
                // What may pass by itself decides: then it is worth trying again.
                Err(failure) => {
                    let may_pass = failure.during("").is_retryable();
                    if reported.is_none() || may_pass {
                        reported = Some(failure);
                    }
                }
            }
        }
        Err(reported.unwrap_or_else(|| Failure::NoSentinel { why: "none is named".into() }))
    }
}

async fn ask(sentinel: &ValkeyAddress, target: &SentinelTarget, files: &TlsFiles) -> ValkeyResult<ValkeyAddress> {
    let context = ServerContext {
        place: format!("the Sentinel {sentinel}"),
        setting: "discovery.valkey.sentinels",
        of: "sentinel_",
        username: target.login.username.clone(),
        prefix: String::new(),
        has_sentinels: true,
    };
    let no_news: Option<fn(PushInfo) -> Result<(), ()>> = None;
    let (mut redis, _driver) = dial(sentinel, &target.login, files, &context, no_news).await.map_err(unavailable)?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(&target.master_name);
    let answer: Option<Vec<String>> = question.query_async(&mut redis).await.map_err(|error| unavailable(context.meaning(&error)))?;
    let Some(answer) = answer else { return Err(Failure::UnknownMaster { name: target.master_name.clone() }) };
    let address = match answer.as_slice() {
        [host, port] => port.parse().ok().map(|port| ValkeyAddress { tls: target.tls, host: host.clone(), port }),
        _ => None,
    };
    address.ok_or_else(|| Failure::NoSentinel { why: format!("{sentinel} names the primary as {}", one_line(&answer.join(" "))) })
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
