//! Requests between members of one process, without a network.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use shardwise_core::InstanceId;
use tokio::sync::watch;

use crate::error::{Result, locked};
use crate::membership::OwnershipContext;
use crate::requests::caller::answer_here;
use crate::requests::{ADDRESS_KEY, Answer, Attempt, MemberEndpoint, Request, Transport, Undelivered};
use crate::service::ShardingService;

/// Brings requests between members of one process, on any clock. Clones share the members.
///
/// A request to a member that is killed before it came is certainly not handled; if the member is killed afterwards, the outcome is
/// unknown.
#[derive(Clone, Default)]
pub struct LocalTransport {
    members: Arc<Mutex<HashMap<InstanceId, LocalMember>>>,
}

#[derive(Clone)]
struct LocalMember {
    context: Weak<OwnershipContext>,
    /// While it is true, requests arrive and none begins.
    is_stalled: watch::Sender<bool>,
}

impl LocalTransport {
    /// Without members.
    pub fn new() -> Self {
        Self::default()
    }

    /// The member takes requests by this, publishes that in its record, and brings its own by it. Call it before the member joins. A member
    /// of the same name replaces an earlier one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](crate::ErrorKind::Settings) if its metadata becomes too long,
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if it has sent requests already.
    pub fn add(&self, service: &ShardingService) -> Result<()> {
        let (context, id) = (&service.membership().ownership_context, service.instance_id());
        context.advertised.show(ADDRESS_KEY, &format!("local:{id}"))?;
        let member = LocalMember { context: Arc::downgrade(context), is_stalled: watch::Sender::new(false) };
        locked(&self.members).insert(id.clone(), member);
        service.set_transport(Arc::new(self.clone()))
    }

    /// Whether requests to that member arrive and do not begin, as while its process is stopped.
    pub fn set_stalled(&self, instance_id: &InstanceId, is_stalled: bool) {
        if let Some(member) = locked(&self.members).get(instance_id) {
            member.is_stalled.send_replace(is_stalled);
        }
    }
}

#[async_trait]
impl Transport for LocalTransport {
    async fn bring(&self, endpoint: &MemberEndpoint, request: &Request, attempt: &Attempt) -> Result<Answer, Undelivered> {
        let unsent = |why: &str| Undelivered::Unsent(format!("{}: {why}", endpoint.instance_id));
        let member = locked(&self.members).get(&endpoint.instance_id).cloned().ok_or_else(|| unsent("it is not in this process"))?;
        let context = member.context.upgrade().filter(|context| !context.gone.is_cancelled()).ok_or_else(|| unsent("it is gone"))?;
        if context.life.incarnation() != endpoint.incarnation {
            return Err(Undelivered::NotMine(None));
        }
        let (mut stalled, gone) = (member.is_stalled.subscribe(), context.gone.clone());
        // The request waits there, so what becomes of it is unknown from here on.
        let begins = async { stalled.wait_for(|is_stalled| !is_stalled).await.is_ok() };
        let answered = async {
            attempt.after_sending(begins).await?;
            answer_here(&context, request.clone(), attempt).await
        };
        tokio::select! {
            biased;
            () = gone.cancelled() => Err(Undelivered::Unknown(format!("{} ended before it had answered", endpoint.instance_id))),
            answer = answered => answer,
        }
    }
}
