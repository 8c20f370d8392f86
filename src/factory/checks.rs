//! Checks before a service is created, because settings made in code have not been validated.

use shardwise_core::{Member, OwnershipMode};
use shardwise_discovery::Discovery;

use crate::backend;
use crate::messages::unreachable_by;
use crate::settings::{InstanceSettings, PolicySettings, token_mistake};

/// What is wrong with the settings for this worker over that backend; `is_own`: the backend was made by the user.
pub(super) fn check(
    settings: &PolicySettings,
    instance: &InstanceSettings,
    member: &Member,
    backend: &dyn Discovery,
    is_own: bool,
) -> Result<(), String> {
    let PolicySettings { policy, timing, discovery, messages, peers } = settings;
    let capabilities = backend.capabilities();
    if policy.ownership == OwnershipMode::Exclusive && backend.as_claims().is_none() {
        return Err(format!(
            "ownership = \"exclusive\" needs a backend that can hold claims, and {} cannot; use \"local\", \"consul\" or \"etcd\", or \
             ownership = \"eventual\"",
            capabilities.name
        ));
    }
    // The TTL of a user's own backend is known only when it is granted.
    if !is_own {
        backend::check_lease(&discovery.backend, timing, policy.ownership).map_err(|error| format!("discovery.{error}"))?;
    }
    let needed = match (instance.id.is_some(), capabilities.keeps_places) {
        _ if policy.rejoin_grace.is_zero() => None,
        (false, _) => {
            Some("it needs instance.id, a name that this worker keeps over restarts and no other one has: set instance.id".into())
        }
        (true, false) => Some(format!(
            "it needs a backend that can keep a place, and {} cannot: use \"local\", \"consul\" or \"etcd\"",
            capabilities.name
        )),
        (true, true) => None,
    };
    if let Some(needed) = needed {
        let grace = shardwise_core::format_duration(policy.rejoin_grace);
        return Err(format!("rejoin_grace is {grace}: {needed}, or remove rejoin_grace"));
    }
    if let Some(mistake) = messages.mistake(&peers.networks) {
        return Err(format!("messages_listen is {}: {mistake}", messages.listen));
    }
    if let Some(mistake) = peers.mistake() {
        return Err(format!("peer_listen is {}: {mistake}", peers.listen));
    }
    for (key, token) in [("messages_token_file", &messages.token), ("peer_token_file", &peers.token)] {
        token_mistake(token.as_ref()).map_or(Ok(()), |mistake| Err(format!("{key}: {mistake}")))?;
    }
    let unknown = messages.listen.ip().is_unspecified() && member.address.is_none();
    if unknown { Err(unreachable_by(messages.listen)) } else { Ok(()) }
}
