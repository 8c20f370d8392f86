//! Where other members' connections arrive. A caller may be anyone until it has proven otherwise, and must not stall the worker: everything
//! here is limited in number, bytes and time.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use secrecy::ExposeSecret;
use shardwise_discovery::LogThrottle;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::ByteStream;
use super::connection_limit::ConnectionLimit;
use super::hello::{self, HELLO_WITHIN, Hello, HelloRefusal, Protection};
use super::proof::Recipient;
use super::recipient;
use super::tls::{self, Binding, ChannelTls};
use crate::membership::OwnershipContext;
use crate::requests::address::arrive_at;
use crate::requests::handlers::RequestHandlers;
use crate::service::ShardingService;

/// The most connections of members; a further one replaces one that is idle.
const CONNECTIONS_MAX: usize = 512;
/// The most connections that have not proven themselves; a further one replaces the oldest.
const STRANGERS_MAX: usize = 64;
/// How long a caller may take for the handshake of TLS.
const TLS_WITHIN: Duration = Duration::from_secs(3);
/// The pause after the system could not accept a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What is known of a connection before its first byte.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionSecurity {
    /// With TLS, what binds the proofs to this connection ([`tls::binding`]).
    pub binding: Option<Binding>,
    /// The caller has presented a valid certificate of the members' CA.
    pub is_certified: bool,
}

/// What has become of a connection that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It was of a member, and has ended.
    Ended,
    /// It was refused, or closed before it had proven itself.
    Refused,
}

/// Takes connections to one or several members of this process.
pub struct Reception {
    members: Vec<Weak<OwnershipContext>>,
    limit: ConnectionLimit,
    refused: LogThrottle<&'static str>,
}

impl Reception {
    /// For these services; keeps none alive.
    pub fn new<'a>(services: impl IntoIterator<Item = &'a ShardingService>) -> Self {
        Self::of(services.into_iter().map(|service| Arc::downgrade(&service.membership().ownership_context)).collect())
    }

    fn of(members: Vec<Weak<OwnershipContext>>) -> Self {
        Self { members, limit: ConnectionLimit::new(CONNECTIONS_MAX), refused: LogThrottle::default() }
    }

    /// Serves a connection to its end, which comes at the latest when its member has left ([`ShardingService::deregister_self`]). Calls
    /// `known` once the caller has proven to be a member: until then it is a stranger, of which few should wait.
    ///
    /// # Errors
    ///
    /// The connection broke or was no such connection before the caller was known.
    pub async fn serve<S>(&self, mut stream: S, security: ConnectionSecurity, known: impl FnOnce()) -> Result<Arrival>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let late = |_| Error::from(ErrorKind::TimedOut);
        let hello = match timeout(HELLO_WITHIN, hello::hello(&mut stream)).await.map_err(late)?? {
            Ok(hello) => hello,
            Err(refusal) => return self.refuse(stream, refusal).await,
        };
        let Some(member) = self.wanted(&hello) else { return self.refuse(stream, HelloRefusal::OtherMember).await };
        let handlers = RequestHandlers::of(&member);
        let own = handlers.security(&member);
        let lacks_certificate = own.tls.is_mutual() && !security.is_certified;
        if lacks_certificate || own.refuses_unproven && own.token.is_none() && !security.is_certified {
            return self.refuse(stream, HelloRefusal::Unproven).await;
        }
        let secret = own.token.as_ref().map(|secret| secret.expose_secret().as_bytes());
        let protection = Protection { secret, binding: security.binding.as_ref().map(Binding::as_slice) };
        let recipient = Recipient::of(&member);
        let session = match timeout(HELLO_WITHIN, hello::proven(&mut stream, &hello, &recipient, &protection)).await.map_err(late)? {
            Ok(Ok(session)) => session,
            Ok(Err(refusal)) => return self.refuse(stream, refusal).await,
            // A caller that finds that this worker has another secret closes the connection silently.
            Err(error) => {
                self.warn(HelloRefusal::Unproven);
                return Err(error);
            }
        };
        let Some(permit) = self.limit.admit().await else { return self.refuse(stream, HelloRefusal::Full).await };
        // The caller has sent no request yet. One that is sent to a member that has left might not get its refusal.
        let Some(incoming) = member.incoming.admit(hello.incarnation) else { return self.refuse(stream, HelloRefusal::OtherMember).await };
        // Before the caller hears of it: it may rely on that.
        known();
        let stream = timeout(HELLO_WITHIN, hello::open(stream, session, &protection)).await.map_err(late)??;
        let is_proven = secret.is_some() || security.is_certified;
        let called = recipient::Called { incarnation: hello.incarnation, member: Arc::downgrade(&member), is_proven };
        // The connection keeps neither the service nor its listener alive.
        drop((member, handlers));
        let ending = async {
            tokio::select! {
                () = incoming.ending.cancelled() => {}
                () = permit.ending() => {}
            }
        };
        tokio::select! {
            () = recipient::serve(stream, called, permit.activity(), ending) => {}
            () = incoming.cut.cancelled() => {}
        }
        Ok(Arrival::Ended)
    }

    /// The member that the caller wants, if it is here.
    fn wanted(&self, hello: &Hello) -> Option<Arc<OwnershipContext>> {
        self.members.iter().filter_map(Weak::upgrade).find(|member| {
            let own = Recipient::of(member);
            (own.group, own.instance_id, own.incarnation) == (&hello.group, &hello.instance_id, hello.incarnation)
        })
    }

    async fn refuse<S: ByteStream>(&self, mut stream: S, refusal: HelloRefusal) -> Result<Arrival> {
        self.warn(refusal);
        timeout(HELLO_WITHIN, hello::refuse(&mut stream, refusal)).await.map_err(|_| Error::from(ErrorKind::TimedOut))??;
        Ok(Arrival::Refused)
    }

    fn warn(&self, refusal: HelloRefusal) {
        let why = match refusal {
            HelloRefusal::OtherProtocol => "another version of shardwise has tried to connect; upgrade it",
            HelloRefusal::Unproven => "a process with another peer token or certificate, or none, has tried to connect",
            HelloRefusal::Full => "there are as many connections of members as this worker takes",
            // Usual after a member has gone and another has its port.
            HelloRefusal::OtherMember => return,
        };
        if let Some(refused) = self.refused.another(why) {
            tracing::warn!(refused, "connections between members were refused: {why}; one line a minute at most");
        }
    }
}

/// Listens at the setting `peer_listen`, unless it listens already, and publishes the address.
pub(crate) async fn listen(context: &Arc<OwnershipContext>) -> crate::error::Result<SocketAddr> {
    let handlers = RequestHandlers::of(context);
    let tls = handlers.security(context).tls.clone();
    let begin = |listener, address| {
        arrive_at(context, address, tls.listens())?;
        tracing::info!(policy = %context.policy.name, %address, tls = tls.listens(), "listens for requests and messages of members");
        Ok(accept_all(listener, Reception::of(vec![Arc::downgrade(context)]), tls.clone()))
    };
    handlers.listener.open(("requests", "peer_listen", context.peers.listen), begin).await
}

/// Accepts connections for ever; dropping it ends them all.
async fn accept_all(listener: TcpListener, reception: Reception, tls: ChannelTls) {
    let reception = Arc::new(reception);
    let mut connections = JoinSet::new();
    let mut strangers: VecDeque<(AbortHandle, Arc<AtomicBool>)> = VecDeque::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_AGAIN).await;
            continue;
        };
        strangers.retain(|(task, is_known)| !task.is_finished() && !is_known.load(Ordering::Relaxed));
        if strangers.len() >= STRANGERS_MAX
            && let Some((oldest, _)) = strangers.pop_front()
        {
            oldest.abort();
        }
        let is_known = Arc::new(AtomicBool::new(false));
        let (reception, tls, known) = (Arc::clone(&reception), tls.clone(), Arc::clone(&is_known));
        let task = connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let known = move || known.store(true, Ordering::Relaxed);
            if let Err(error) = connection(stream, &reception, &tls, known).await {
                tracing::debug!(%error, "a connection of a member has ended");
            }
        });
        strangers.push_back((task, is_known));
    }
}

async fn connection(stream: tokio::net::TcpStream, reception: &Reception, tls: &ChannelTls, known: impl FnOnce()) -> Result<Arrival> {
    if !tls.listens() {
        return reception.serve(stream, ConnectionSecurity::default(), known).await;
    }
    let accepted = timeout(TLS_WITHIN, tls::accepted(tls, stream)).await.map_err(|_| Error::from(ErrorKind::TimedOut))?;
    let (stream, binding) = accepted?;
    // With certificates on both sides the handshake has verified the caller's.
    reception.serve(stream, ConnectionSecurity { binding: Some(binding), is_certified: tls.is_mutual() }, known).await
}
