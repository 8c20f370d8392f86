//! Checks before a service is created, because settings made in code have not been validated.

use shardwise_core::{Member, Policy};
use shardwise_discovery::Discovery;

use crate::backend;
use crate::error::{Error, ErrorKind, Result};
use crate::messages::unreachable_by;
use crate::settings::{InstanceSettings, PolicySettings};

/// Checks that, with the TTL that the backend grants, a member owns something from one renewal to the next.
pub(super) fn lease(PolicySettings { policy, timing, discovery, .. }: &PolicySettings) -> Result<()> {
    let refused = |error| Error::new(ErrorKind::Settings, format!("policy {}: discovery.{error}", policy.name));
    backend::check_lease(&discovery.backend, timing, policy.ownership).map_err(refused)
}

/// Checks that a place can be kept for this worker, if `rejoin_grace` asks for that.
pub(super) fn rejoin_grace(policy: &Policy, instance: &InstanceSettings, backend: &dyn Discovery) -> Result<()> {
    let needed = if policy.rejoin_grace.is_zero() {
        return Ok(());
    } else if instance.id.is_none() {
        "it needs instance.id, a name that this worker keeps over restarts and no other one has: set instance.id".to_owned()
    } else if !backend.capabilities().keeps_places {
        let name = backend.capabilities().name;
        format!("it needs a backend that can keep a place, and {name} cannot: use \"local\", \"consul\" or \"etcd\"")
    } else {
        return Ok(());
    };
    let grace = shardwise_core::format_duration(policy.rejoin_grace);
    let message = format!("policy {}: rejoin_grace is {grace}: {needed}, or remove rejoin_grace", policy.name);
    Err(Error::new(ErrorKind::Settings, message))
}

/// Checks that this worker can listen for messages and requests as configured, and that the others can know the address.
pub(super) fn listeners(settings: &PolicySettings, member: &Member) -> Result<()> {
    let listen = settings.messages.listen;
    if let Some(mistake) = settings.messages.mistake(&settings.peers.networks) {
        return Err(Error::new(ErrorKind::Settings, format!("policy {}: messages_listen is {listen}: {mistake}", settings.policy.name)));
    }
    if let Some(mistake) = settings.peers.mistake() {
        let message = format!("policy {}: peer_listen is {}: {mistake}", settings.policy.name, settings.peers.listen);
        return Err(Error::new(ErrorKind::Settings, message));
    }
    let tokens = [("messages_token_file", settings.messages.token_mistake()), ("peer_token_file", settings.peers.token_mistake())];
    if let Some((key, mistake)) = tokens.iter().find_map(|(key, mistake)| Some((key, (*mistake)?))) {
        return Err(Error::new(ErrorKind::Settings, format!("policy {}: {key}: {mistake}", settings.policy.name)));
    }
    let unknown = listen.ip().is_unspecified() && member.address.is_none();
    if unknown { Err(unreachable_by(listen)) } else { Ok(()) }
}
