//! This member's connections to others: one to each, opened for the first request and closed when idle. Says of each request exactly what
//! is known.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use shardwise_core::GroupName;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::activity::{ActiveRequest, Activity};
use super::dial::{CallingEnd, Unreached};
use super::{CALLER_IDLE_MAX, CONNECTION_WINDOW, HEAD_BYTES_MAX, PING_INTERVAL, PING_TIMEOUT, STREAM_WINDOW};
use super::{body, wire};
use crate::error::locked;
use crate::membership::OwnershipContext;
use crate::requests::PeerSecurity;
use crate::requests::handlers::{RequestHandlers, is_message};
use crate::requests::transport::{Attempt, MemberEndpoint, Transport, Undelivered};
use crate::requests::{Answer, BODY_BYTES_MAX, Method, Request};
use crate::settings::Network;

type Sender = SendRequest<Full<Bytes>>;
/// A connection that is open or was not opened; `None` while it is being opened.
type Opening = watch::Receiver<Option<Result<Sender, Unreached>>>;

/// The most connections of one member to others; as many as a large group has members.
const CONNECTIONS_MAX: usize = 1_024;

/// The connections to other members.
pub(crate) struct MemberConnections {
    end: Arc<CallingEnd>,
    open: Mutex<HashMap<MemberEndpoint, Arc<MemberConnection>>>,
    /// How many requests are in flight on one connection; others wait.
    streams: u32,
}

struct MemberConnection {
    opening: Opening,
    /// The requests in flight, so that none waits inside HTTP/2, where it could not be taken back with certainty.
    streams: Semaphore,
    /// The same with those that wait for their turn.
    activity: Arc<Activity>,
}

impl MemberConnection {
    /// Whether it is being opened, or can take requests.
    fn is_good(&self) -> bool {
        match &*self.opening.borrow() {
            Some(opened) => opened.as_ref().is_ok_and(|sender| !sender.is_closed()),
            // Without its task it is opened no more.
            None => self.opening.has_changed().is_ok(),
        }
    }

    /// Waits until it is open.
    async fn sender(&self) -> Result<Sender, Unreached> {
        // Nearly always: then nothing is waited for.
        if let Some(opened) = &*self.opening.borrow() {
            return opened.clone();
        }
        let opened = self.opening.clone().wait_for(Option::is_some).await.map(|opened| opened.clone());
        opened.ok().flatten().unwrap_or_else(|| Err(Unreached::Unsent("this worker is stopping".into())))
    }
}

impl MemberConnections {
    /// Those of one member.
    pub(crate) fn of(context: &OwnershipContext, handlers: &RequestHandlers) -> Self {
        Self::new(
            context.policy.group.clone(),
            context.peers.networks.clone(),
            handlers.security(context).clone(),
            context.requests.streams(),
        )
    }

    /// Those of a caller that proves itself by `security` and calls only addresses in `networks`, with so many requests at once on each.
    pub(crate) fn new(group: GroupName, networks: Vec<Network>, security: PeerSecurity, streams: u32) -> Self {
        Self { end: Arc::new(CallingEnd { group, networks, security }), open: Mutex::default(), streams }
    }

    /// The connection to that endpoint, which may still have to open, for one more request; `None` if there are too many.
    fn connection(&self, endpoint: &MemberEndpoint) -> Option<(Arc<MemberConnection>, ActiveRequest)> {
        let mut open = locked(&self.open);
        if let Some(known) = open.get(endpoint).filter(|known| known.is_good()) {
            return Some((Arc::clone(known), known.activity.begin()));
        }
        open.retain(|_, known| known.is_good());
        if open.len() >= CONNECTIONS_MAX {
            let idle = open.iter().filter_map(|(endpoint, known)| Some((known.activity.idle_since()?, endpoint)));
            let oldest = idle.min_by_key(|(since, _)| *since).map(|(_, endpoint)| endpoint.clone())?;
            // Without its sender a connection closes.
            open.remove(&oldest);
        }
        let (activity, streams) = (Activity::new(), Semaphore::new(self.streams as usize));
        let (begun, (opened, opening)) = (activity.begin(), watch::channel(None));
        let connecting = open_connection(Arc::clone(&self.end), endpoint.clone(), Arc::clone(&activity), self.streams);
        // A task, so that it goes on and ends whether or not a request waits for it.
        tokio::spawn(async move {
            let outcome = connecting.await;
            opened.send_replace(Some(outcome));
        });
        let new = Arc::new(MemberConnection { opening, streams, activity });
        open.insert(endpoint.clone(), Arc::clone(&new));
        Some((new, begun))
    }
}

/// A new connection with HTTP/2 on it, which closes when it is idle.
async fn open_connection(
    end: Arc<CallingEnd>,
    endpoint: MemberEndpoint,
    activity: Arc<Activity>,
    streams: u32,
) -> Result<Sender, Unreached> {
    let stream = end.open(&endpoint).await?;
    let mut client = http2::Builder::new(TokioExecutor::new());
    client
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEAD_BYTES_MAX)
        .initial_max_send_streams(streams as usize)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(false);
    let (sender, connection) =
        client.handshake(TokioIo::new(stream)).await.map_err(|error| Unreached::Unsent(format!("{}: {error}", endpoint.address)))?;
    // Its end is seen by the sender: a request that comes just then is given back.
    tokio::spawn(async move {
        tokio::select! {
            _ = connection => {}
            () = activity.idle_for(CALLER_IDLE_MAX) => {}
        }
    });
    Ok(sender)
}

#[async_trait]
impl Transport for MemberConnections {
    async fn bring(&self, endpoint: &MemberEndpoint, request: &Request, attempt: &Attempt) -> Result<Answer, Undelivered> {
        // A body goes only to what has proven to be the member. Messages to singletons go to any program of this machine, if there is no
        // token.
        let is_message = is_message(request.to, &request.path);
        if request.method == Method::Post && !is_message && !self.end.wants_proof(&endpoint.address) {
            let why = "without a peer token or certificates only GET is brought to members: set peer_token_file for all members";
            return Err(Undelivered::Barred(why.into()));
        }
        let (mut is_second, unsent) = (false, |why: &str| Undelivered::Unsent(why.to_owned()));
        loop {
            let Some((connection, _active)) = self.connection(endpoint) else {
                return Err(unsent("this worker has as many connections to members as are allowed, and all are in use"));
            };
            let Some(Ok(_stream)) = attempt.before_sending(connection.streams.acquire()).await else {
                return Err(unsent("as many requests to it as are allowed are in flight already"));
            };
            let mut sender = match attempt.before_sending(connection.sender()).await {
                Some(Ok(sender)) => sender,
                Some(Err(Unreached::Unsent(why))) => return Err(Undelivered::Unsent(why)),
                Some(Err(Unreached::Unproven(why))) => return Err(Undelivered::Unproven(why)),
                Some(Err(Unreached::Barred(why))) => return Err(Undelivered::Barred(why)),
                None => return Err(unsent("it takes too long to connect to it")),
            };
            let within = attempt.until.saturating_duration_since(Instant::now());
            let sent = wire::request(request, within).map_err(|error| Undelivered::Barred(error.to_string()))?;
            match attempt.after_sending(sender.try_send_request(sent)).await? {
                Ok(response) => return answered(response, attempt).await,
                // The request never reached the wire: the connection had been closed while idle, and another one can be opened.
                Err(failed) if failed.message().is_some() && !is_second => is_second = true,
                Err(failed) => return Err(failure(failed.message().is_some(), failed.error())),
            }
        }
    }
}

/// What is known of a request that a connection did not answer.
fn failure(is_given_back: bool, error: &hyper::Error) -> Undelivered {
    let causes = || std::iter::successors(error.source(), |&cause| cause.source());
    // The other end says that it has not begun with it (RFC 9113, section 8.7). A GOAWAY cannot be attributed to one request.
    let is_refusal = |error: &h2::Error| error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let is_refused = causes().filter_map(|cause| cause.downcast_ref::<h2::Error>()).any(is_refusal);
    let cause = causes().last().map(|cause| format!(": {cause}")).unwrap_or_default();
    let why = format!("{error}{cause}");
    if is_given_back || is_refused { Undelivered::Unsent(why) } else { Undelivered::Unknown(why) }
}

async fn answered(response: hyper::Response<Incoming>, attempt: &Attempt) -> Result<Answer, Undelivered> {
    let (head, incoming) = response.into_parts();
    match attempt.after_sending(body::whole(incoming, BODY_BYTES_MAX)).await? {
        Ok(body) => wire::outcome(&head, body),
        Err(error) => Err(Undelivered::Unknown(format!("its answer is too long or cut off: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use shardwise_core::{Incarnation, InstanceId};

    use super::*;

    #[tokio::test]
    async fn connections_are_bounded_and_one_that_is_idle_makes_room() {
        let connections = MemberConnections::new(GroupName::new("g").unwrap(), Vec::new(), PeerSecurity::default(), 64);
        let endpoint = |number| MemberEndpoint {
            instance_id: InstanceId::new("a").unwrap(),
            incarnation: Incarnation::new(number),
            address: "tcp://192.0.2.1:7".into(),
        };
        // Nothing is awaited here, so none of them gets beyond its beginning.
        let mut held: Vec<_> = (0..CONNECTIONS_MAX as u64).map(|number| connections.connection(&endpoint(number)).unwrap()).collect();
        assert!(connections.connection(&endpoint(u64::MAX)).is_none(), "all are in use");
        drop(held.swap_remove(3));
        assert!(connections.connection(&endpoint(u64::MAX)).is_some());
        let open = locked(&connections.open);
        assert!(open.len() == CONNECTIONS_MAX && !open.contains_key(&endpoint(3)));
    }
}
