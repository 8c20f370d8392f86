//! Confirms a loss: an operator says that vanished members are gone for good.

use std::sync::Arc;

use futures::StreamExt;
use shardwise_core::{InstanceId, Loss, Member, MemberState, Policy, Timing, View};
use shardwise_discovery::{Discovery, Registration, WatchEvent, random_incarnation};

use crate::error::{Error, ErrorKind, Result};
use crate::membership::{follow, limited};

/// Publishes a draining record with the confirmation, until no member waits for it. Returns how many waited.
pub(crate) async fn confirm_loss(policy: &Policy, timing: Timing, backend: Arc<dyn Discovery>) -> Result<usize> {
    let view = limited(timing.ttl, &*backend, "members", backend.members(&policy.group)).await?.view;
    let waiting = standing_still(&view);
    if waiting == 0 {
        return Ok(0);
    }
    let incarnation = random_incarnation();
    let id = InstanceId::new(format!("confirm-loss-{incarnation}")).map_err(|error| Error::new(ErrorKind::Settings, error.to_string()))?;
    let member = Member {
        incarnation,
        state: MemberState::Draining,
        loss: Some(Loss::Confirmed),
        // It must not affect what the group serves.
        fingerprints: vec![view.group_fingerprint().unwrap_or_else(|| policy.fingerprint())],
        serves: view.serves().cloned(),
        ..Member::named(id)
    };
    let registration = Registration { group: policy.group.clone(), member, ttl: timing.ttl, claims: false };
    limited(timing.ttl, &*backend, "register", backend.register(&registration)).await?;
    let heard = tokio::time::timeout(timing.ttl, all_go_on(&backend, &registration, timing)).await.is_ok();
    limited(timing.ttl, &*backend, "deregister", backend.deregister(&registration.record_id())).await?;
    if heard {
        return Ok(waiting);
    }
    Err(Error::new(ErrorKind::Unavailable, "some members still wait one TTL after the loss was confirmed; check their logs and retry"))
}

async fn all_go_on(backend: &Arc<dyn Discovery>, registration: &Registration, timing: Timing) {
    let mut news = follow(backend, &registration.group, timing.renew_every);
    while let Some(event) = news.next().await {
        if let Ok(WatchEvent::View(snapshot)) = event
            && standing_still(&snapshot.view) == 0
        {
            return;
        }
    }
}

fn standing_still(view: &View) -> usize {
    view.members().iter().filter(|member| matches!(member.loss, Some(Loss::Missing(_)))).count()
}
