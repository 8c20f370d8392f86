//! The life of a sidecar: two runtimes, and the routes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use futures::StreamExt as _;
use futures::future::{join_all, try_join_all};
use shardwise::core::View;
use shardwise::requests::channel::Reception;
use shardwise::{Serves, ShardingFactory};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::app::{App, ServedGroup, members};
use crate::connections::{ListenerContext, MemberReception, serve};
use crate::error::Error;
use crate::gate::gate;
use crate::history::History;
use crate::leases::Leases;
use crate::options::Options;
use crate::problem::{NOT_FOUND, Problem};
use crate::view_since::ViewSince;
use crate::{
    answers, ask, cancels, daemons, drain, explain, forward, health, holders, key_routes, lease_routes, openapi, outbox_routes, owned,
    page, plan, rebalances, slots, worker_requests,
};

/// The sidecar of a worker: it joins groups on the worker's behalf and answers for it over HTTP.
pub struct Sidecar {
    app: Arc<App>,
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    /// One thread for everything that keeps ownership, so that clients cannot delay it.
    renewals: Runtime,
    clients: Runtime,
    address: SocketAddr,
}

impl Sidecar {
    /// Listens, and creates the services of these policies. Contacts no backend.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn new(factory: ShardingFactory, policies: &[String], mut options: Options) -> Result<Self, Error> {
        options.check()?;
        let listen = |error| Error::Listen(options.listen, error);
        let listener = std::net::TcpListener::bind(options.listen).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let renewals =
            Builder::new_multi_thread().worker_threads(1).thread_name("renewals").enable_all().build().map_err(Error::Threads)?;
        let clients = Builder::new_multi_thread().thread_name("clients").enable_all().build().map_err(Error::Threads)?;
        if let Some(both) = policies.iter().find(|name| options.observe.contains(name)) {
            return Err(Error::Options(format!("policy {both} is given twice, to join (--policy) and to observe (--observe): drop one")));
        }
        let joined = |(name, only_observes): (&String, bool)| {
            // A policy that is only observed is never registered. It may belong to an outbox, whose group no worker for keys joins.
            let serves = if only_observes { Serves::Outbox { id: "observer".into(), name: "observer".into() } } else { Serves::Keys };
            let service = factory.create_serving(name, serves)?;
            let security = options.peers.security(service.peers(), options.token.is_some())?;
            let proves = security.token.is_some() || security.tls.is_mutual();
            service.secure_peers(security)?;
            let life = shardwise::discovery::random_incarnation().get();
            let (observer, history, view_since) = (OnceLock::new(), History::new(life), ViewSince::default());
            let (leases, router) = (Arc::new(Leases::new(service.clone())), OnceCell::new());
            Ok((name.clone(), Arc::new(ServedGroup { service, only_observes, proves, observer, history, view_since, leases, router })))
        };
        let all = policies.iter().map(|name| (name, false)).chain(options.observe.iter().map(|name| (name, true)));
        let policies = all.map(joined).collect::<Result<BTreeMap<_, _>, Error>>()?;
        options.keeps_apart(policies.values().map(|joined| joined.service.peers()))?;
        options.peers.complete(members(&policies).map(|(_, joined)| joined.service.peers()), options.tls.is_some())?;
        // Inside a runtime, so that a task shows the load of each member.
        let on_renewals = renewals.enter();
        for (name, joined) in members(&policies) {
            // If this sidecar's address cannot be determined, it runs without requests from other members.
            match joined.service.requests_arrive_at(address, options.tls.is_some()) {
                // Clients may call it by that name, which the operator chose.
                Ok(shown) => options.hosts.extend(host_of(&shown)),
                Err(error) => tracing::warn!(policy = name, %error, "other members cannot bring requests here"),
            }
        }
        drop(on_renewals);
        let names: Vec<_> = policies.keys().map(String::as_str).collect();
        let tokens = openapi::TokensSet::of(&options);
        let document = openapi::document(&names, tokens);
        let served = options.tls.take().map(|tls| tls.served(options.peers.verifier())).transpose()?;
        let tls = served.map(TlsAcceptor::from);
        let app = Arc::new(App::new(factory, policies, renewals.handle().clone(), document, options));
        worker_requests::forward(&app);
        Ok(Self { app, listener, tls, renewals, clients, address })
    }

    /// The address it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves, joins, calls `ready`, and leaves the groups when `shutdown` resolves, which is polled before it joins. Clients are answered
    /// from the beginning to the end.
    ///
    /// # Errors
    ///
    /// If a group could not be joined, or `ready` failed.
    pub fn run<E: From<Error>>(self, ready: impl FnOnce() -> Result<(), E>, shutdown: impl Future<Output = ()>) -> Result<(), E> {
        let Self { app, listener, tls, renewals, clients, address: _ } = self;
        let stop = CancellationToken::new();
        let listener = {
            let _on = clients.enter();
            TcpListener::from_std(listener).map_err(Error::Threads)?
        };
        let context = ListenerContext {
            routes: routes(&app),
            connections: Arc::clone(&app.connections),
            limits: app.options.limits.clone(),
            tls,
            members: Some(reception(&app)),
        };
        let server = clients.spawn(serve(listener, context, stop.clone()));
        let result = renewals.block_on(async {
            tokio::pin!(shutdown);
            let result = tokio::select! {
                // First, so that the wait for a signal has begun before this process reports that it is ready.
                biased;
                () = &mut shutdown => Ok(()),
                joined = join(&app) => match joined.map_err(E::from).and_then(|()| ready()) {
                    Ok(()) => {
                        shutdown.await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            app.leaving.store(true, Ordering::Relaxed);
            leave(&app).await;
            result
        });
        stop.cancel();
        // It ends within its own time limit.
        let _ = clients.block_on(server);
        clients.shutdown_background();
        renewals.shutdown_background();
        result
    }
}

/// The host in an address that a member's record shows.
fn host_of(address: &str) -> Option<String> {
    let (_, host_and_port) = address.split_once("://")?;
    let (host, _) = host_and_port.rsplit_once(':')?;
    Some(host.trim_matches(['[', ']']).to_owned())
}

/// Takes the connections of members to the groups that are joined.
fn reception(app: &App) -> MemberReception {
    let proves = app.options.token.is_some() || members(&app.policies).all(|(_, joined)| joined.proves);
    MemberReception { reception: Reception::new(members(&app.policies).map(|(_, joined)| &joined.service)), proves }
}

/// Joins all groups concurrently, except those that are only observed, and begins to watch each.
async fn join(app: &App) -> Result<(), Error> {
    let all = app.policies.iter().map(|(name, joined)| async move {
        if joined.only_observes { observe(&app.factory, name, joined).await } else { join_one(app, name, joined).await }
    });
    try_join_all(all).await?;
    Ok(())
}

async fn join_one(app: &App, name: &str, joined: &Arc<ServedGroup>) -> Result<(), Error> {
    let (factory, worker) = (&app.factory, &app.options.worker);
    let (mut rebalances, mut snapshots) = (joined.service.rebalances(), joined.service.snapshots());
    let seen = Arc::clone(joined);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                Some(snapshot) = snapshots.recv() => seen.view_since.saw(snapshot.view().revision(), seen.service.now()),
                Some(rebalance) = rebalances.recv() => seen.history.push(&rebalance, seen.view_since.took(&rebalance)),
                else => break,
            }
        }
    });
    if let Some(worker) = worker.clone() {
        joined.service.health(move || worker.clone().check())?;
    }
    if joined.leases.are_required() {
        joined.service.set_worker_leased(false)?;
    }
    tokio::spawn(Arc::clone(&joined.leases).keep());
    joined.service.register_self().await?;
    let _ = joined.observer.set(factory.observe(name).await?);
    Ok(())
}

/// Shows a group and its changes, once the backend answers.
async fn observe(factory: &ShardingFactory, name: &str, joined: &Arc<ServedGroup>) -> Result<(), Error> {
    let observer = loop {
        match factory.observe(name).await {
            // Each attempt takes a TTL, and the observer has logged the reason.
            Err(error) if error.is_retryable() => {}
            observed => break observed?,
        }
    };
    let mut views = Box::pin(observer.views());
    let _ = joined.observer.set(observer);
    let joined = Arc::clone(joined);
    tokio::spawn(async move {
        let mut before: Option<Arc<View>> = None;
        while let Some(view) = views.next().await {
            if let Some(before) = &before {
                let departures = joined.observer.get().map(shardwise::Observer::departures).unwrap_or_default();
                joined.history.push_change(before, &view, &departures);
            }
            before = Some(view);
        }
    });
    Ok(())
}

async fn leave(app: &App) {
    let leaving = app.policies.values().filter(|joined| !joined.only_observes).map(|joined| joined.service.deregister_self());
    for error in join_all(leaving).await.into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "could not deregister; the lease expires by itself");
    }
}

async fn root(State(app): State<Arc<App>>) -> Response {
    app.page.root()
}

fn routes(app: &Arc<App>) -> Router {
    let get_only = || async { Problem::method_not_allowed("GET, HEAD") };
    let get_or_post = || async { Problem::method_not_allowed("GET, POST") };
    let post_only = || async { Problem::method_not_allowed("POST") };
    let put_only = || async { Problem::method_not_allowed("PUT") };
    let get_or_put = || async { Problem::method_not_allowed("GET, PUT") };
    let delete_only = || async { Problem::method_not_allowed("DELETE") };
    let put_or_delete = || async { Problem::method_not_allowed("PUT, DELETE") };
    let of = |path: &str| format!("/v1/policies/{{policy}}/{path}");
    Router::new()
        .route(&of("owned"), post(owned::owned).fallback(post_only))
        .route(&of("owner/"), get(answers::owner).fallback(get_only))
        .route(&of("owner/{key}"), get(answers::owner).fallback(get_only))
        .route(&of("explain/"), get(explain::explain).fallback(get_only))
        .route(&of("explain/{key}"), get(explain::explain).fallback(get_only))
        .route(&of("ownership"), get(answers::ownership).fallback(get_only))
        .route(&of("members"), get(answers::members).fallback(get_only))
        .route(&of("rebalances"), get(rebalances::rebalances).fallback(get_only))
        .route(&of("plan"), post(plan::plan).fallback(post_only))
        .route(&of("drain"), post(drain::drain).fallback(post_only))
        .route(&of("undrain"), post(drain::undrain).fallback(post_only))
        .route(&of("daemons/"), get(daemons::daemon_count).put(daemons::set_daemon_count).fallback(get_or_put))
        .route(&of("daemons/{set}"), get(daemons::daemon_count).put(daemons::set_daemon_count).fallback(get_or_put))
        .route(&of("instances/{instance_id}/{*path}"), get(forward::one).post(forward::one).fallback(get_or_post))
        .route(&of("any/{*path}"), get(forward::any).post(forward::any).fallback(get_or_post))
        .route(&of("keys//{*path}"), get(ask::to_owner).post(ask::to_owner).fallback(get_or_post))
        .route(&of("keys/{key}/{*path}"), get(ask::to_owner).post(ask::to_owner).fallback(get_or_post))
        .route(&of("names/{name}/{*path}"), get(ask::to_holder).post(ask::to_holder).fallback(get_or_post))
        .route(&of("sessions/{id}/{*path}"), get(ask::to_session).post(ask::to_session).fallback(get_or_post))
        .route(&of("requests/{id}"), delete(cancels::cancel).fallback(delete_only))
        .route(&of("route"), get(key_routes::route).fallback(get_only))
        .route(&of("routes"), get(key_routes::routes).fallback(get_only))
        .route(&of("routes/"), put(key_routes::set_route).delete(key_routes::clear_route).fallback(put_or_delete))
        .route(&of("routes/{key}"), put(key_routes::set_route).delete(key_routes::clear_route).fallback(put_or_delete))
        .route(&of("leases"), post(lease_routes::lease::open).fallback(post_only))
        .route(&of("leases/{lease}"), put(lease_routes::lease::renew).delete(lease_routes::lease::close).fallback(put_or_delete))
        .route(&of("grants"), get(lease_routes::follow::grants).fallback(get_only))
        .route(&of("grants/finished"), post(lease_routes::follow::finished).fallback(post_only))
        .route(&of("enter"), post(lease_routes::enter::enter).fallback(post_only))
        .route(&of("names"), put(lease_routes::names::offer).fallback(put_only))
        .route(&of("holders"), get(holders::holders).fallback(get_only))
        .route(&of("slots"), get(slots::slots).fallback(get_only))
        .route(&of("drained"), get(slots::drained).fallback(get_only))
        .route("/v1/outbox", get(outbox_routes::status).fallback(get_only))
        .route("/v1/outbox/replay", post(outbox_routes::replay).fallback(post_only))
        .route("/v1/policies", get(slots::policies).fallback(get_only))
        .route(page::ROOT, get(root).fallback(get_only))
        .route("/assets/{name}", get(page::asset).fallback(get_only))
        .route("/livez", get(health::livez).fallback(get_only))
        .route("/readyz", get(health::readyz).fallback(get_only))
        .route("/metrics", get(health::metrics).fallback(get_only))
        .route("/openapi.json", get(health::document).fallback(get_only))
        .fallback(|| async { NOT_FOUND.because("there is nothing at this path; /openapi.json lists what there is") })
        .layer(from_fn_with_state(Arc::clone(app), gate))
        .with_state(Arc::clone(app))
}
