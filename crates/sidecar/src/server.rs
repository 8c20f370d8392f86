//! A sidecar from its start to its end: two runtimes, connections, and the routes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use shardwise::ShardingFactory;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::app::{App, Joined, Made};
use crate::gate::{Local, OPEN, gate};
use crate::history::History;
use crate::options::{Limits, Options, Tls};
use crate::problem::Problem;
use crate::seats::{Busy, Ticket};
use crate::signs::Signs;
use crate::steady::Steady;
use crate::{answers, explain, forward, health, openapi, outbox, owned, page, peers, plan, rebalances, slots, wishes};

/// The most bytes of a request's head: the longest path there can be, and as much for headers.
const HEAD_BYTES_MAX: usize = 128 << 10;
/// How long answers that are being written may take at the end.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long new connections are not looked for, after one could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What is said to whom there is no room for.
const FULL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Why a sidecar does not start or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is told something that is not allowed.
    #[error("{0}")]
    Options(String),
    /// A file that it needs.
    #[error("cannot read {}: {}", .0.display(), .1)]
    File(PathBuf, #[source] io::Error),
    /// The address where it is to listen.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The system gives it no threads.
    #[error("cannot start its threads: {0}")]
    Threads(#[source] io::Error),
    /// The library or the backend.
    #[error(transparent)]
    Sharding(#[from] shardwise::Error),
}

/// A process beside a worker: joins groups in its name and answers for it over HTTP.
pub struct Sidecar {
    app: Arc<App>,
    listener: std::net::TcpListener,
    tls: Option<Tls>,
    /// One thread for everything that keeps ownership: no client can keep it busy.
    renewals: Runtime,
    clients: Runtime,
    address: SocketAddr,
}

impl Sidecar {
    /// Listens, and makes the services of these policies, without contacting anybody.
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
        let joined = |name: &String| {
            let service = factory.create(name)?;
            let life = shardwise::discovery::random_incarnation().get();
            Ok((
                name.clone(),
                Arc::new(Joined { service, observer: OnceLock::new(), history: History::new(life), signs: Signs::default() }),
            ))
        };
        let policies = policies.iter().map(joined).collect::<Result<BTreeMap<_, _>, Error>>()?;
        options.keeps_apart(policies.values().map(|joined| joined.service.peers()))?;
        for (name, joined) in &policies {
            // Where nobody can know where it is, it goes on without being asked by others.
            if let Err(error) = joined.service.requests_arrive_at(address, options.tls.is_some()) {
                tracing::warn!(policy = name, %error, "other members cannot bring requests here");
            }
        }
        let document = openapi::document(policies.keys().map(String::as_str), options.token.is_some());
        let tls = options.tls.take();
        let made = Made { factory, policies, renewals: renewals.handle().clone(), document };
        Ok(Self { app: Arc::new(App::new(made, options)), listener, tls, renewals, clients, address })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves, joins, tells `ready`, and when `shutdown` ends leaves the groups in good order. Clients are answered from the first moment to the last.
    ///
    /// # Errors
    ///
    /// Why a group could not be joined, or `ready` failed.
    pub fn run<E: From<Error>>(self, ready: impl FnOnce() -> Result<(), E>, shutdown: impl Future<Output = ()>) -> Result<(), E> {
        let Self { app, listener, tls, renewals, clients, address: _ } = self;
        let stop = CancellationToken::new();
        let listener = {
            let _on = clients.enter();
            TcpListener::from_std(listener).map_err(Error::Threads)?
        };
        let server = clients.spawn(serve(listener, tls, Arc::clone(&app), stop.clone()));
        let result = renewals.block_on(async {
            tokio::pin!(shutdown);
            let result = tokio::select! {
                joined = join(&app) => match joined.map_err(E::from).and_then(|()| ready()) {
                    Ok(()) => {
                        shutdown.await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
                () = &mut shutdown => Ok(()),
            };
            app.leaving.store(true, Ordering::Relaxed);
            leave(&app).await;
            result
        });
        stop.cancel();
        // It ends within its farewell.
        let _ = clients.block_on(server);
        clients.shutdown_background();
        renewals.shutdown_background();
        result
    }
}

/// Joins all groups at a time, and begins to watch each.
async fn join(app: &Arc<App>) -> Result<(), Error> {
    let mut joining = JoinSet::new();
    for (name, joined) in &app.policies {
        let (factory, name, joined) = (app.factory.clone(), name.clone(), Arc::clone(joined));
        let (mut rebalances, mut snapshots) = (joined.service.rebalances(), joined.service.snapshots());
        let told = Arc::clone(&joined);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    Some(snapshot) = snapshots.recv() => told.signs.saw(&snapshot, told.service.now()),
                    Some(rebalance) = rebalances.recv() => told.history.push(&rebalance, told.signs.took(&rebalance)),
                    else => break,
                }
            }
        });
        joining.spawn(async move {
            joined.service.register_self().await?;
            let observer = factory.observe(&name).await?;
            let _ = joined.observer.set(observer);
            Ok::<_, Error>(())
        });
    }
    while let Some(joined) = joining.join_next().await {
        joined.map_err(|error| Error::Threads(io::Error::other(error)))??;
    }
    Ok(())
}

async fn leave(app: &App) {
    let leaving = app.policies.values().map(|joined| joined.service.deregister_self());
    for error in futures::future::join_all(leaving).await.into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "could not leave in good order; the lease ends by itself");
    }
}

async fn serve(listener: TcpListener, tls: Option<Tls>, app: Arc<App>, stop: CancellationToken) {
    let (acceptor, routes) = (tls.map(|tls| TlsAcceptor::from(tls.0)), routes(&app));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Some(ticket) = app.seats.take() else {
                        turn_away(&stream);
                        continue;
                    };
                    let serving = Serving { routes: routes.clone(), limits: app.limits.clone(), ticket: Arc::new(ticket), stop: stop.clone() };
                    connections.spawn(serving.connection(stream, acceptor.clone()));
                }
                // Nobody can be taken in just now, such as without file descriptors.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            () = stop.cancelled() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// As well as it goes without waiting.
fn turn_away(stream: &TcpStream) {
    let _ = stream.try_write(FULL);
}

struct Serving {
    routes: Router,
    limits: Limits,
    ticket: Arc<Ticket>,
    stop: CancellationToken,
}

impl Serving {
    async fn connection(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let Ok(local) = stream.local_addr() else { return };
        let _ = stream.set_nodelay(true);
        let closed = self.ticket.closed().clone();
        let limit = self.limits.head;
        let steady = Steady::new(stream, self.limits.stall);
        let served = async move {
            match tls {
                None => self.http(steady, local).await,
                Some(acceptor) => {
                    if let Ok(Ok(stream)) = tokio::time::timeout(limit, acceptor.accept(steady)).await {
                        self.http(stream, local).await;
                    }
                }
            }
        };
        tokio::select! {
            () = served => {}
            () = closed.cancelled() => {}
        }
    }

    async fn http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, local: SocketAddr) {
        let Self { routes, limits, ticket, stop } = self;
        let probes_only = ticket.probes_only();
        let answer = service_fn(move |request: hyper::Request<Incoming>| {
            let (routes, busy) = (routes.clone(), ticket.busy());
            async move {
                let mut request: Request = request.map(Body::new);
                request.extensions_mut().insert(Local(local));
                if probes_only && !OPEN.contains(&request.uri().path()) {
                    let mut response =
                        Problem::too_many("all connections are busy; this one is for /livez and /readyz alone").into_response();
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    return Ok::<_, Infallible>(response.map(|body| Held { body, _busy: busy }));
                }
                let response = routes.oneshot(request).await.unwrap_or_else(|never: Infallible| match never {});
                Ok::<_, Infallible>(response.map(|body| Held { body, _busy: busy }))
            }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD_BYTES_MAX).half_close(true);
        let connection = http.serve_connection(TokioIo::new(stream), answer);
        tokio::pin!(connection);
        tokio::select! {
            // A client that goes away or sends nonsense has had its answer.
            _ = connection.as_mut() => {}
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(FAREWELL, connection).await;
            }
        }
    }
}

/// An answer that keeps its connection busy until its last byte has been handed over.
struct Held {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn routes(app: &Arc<App>) -> Router {
    let get_only = || async { Problem::method_not_allowed("GET, HEAD") };
    let get_or_post = || async { Problem::method_not_allowed("GET, POST") };
    let post_only = || async { Problem::method_not_allowed("POST") };
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
        .route(&of("drain"), post(wishes::drain).fallback(post_only))
        .route(&of("undrain"), post(wishes::undrain).fallback(post_only))
        .route(&of("instances/{instance_id}/{*path}"), get(forward::of_one).post(forward::to_one).fallback(get_or_post))
        .route(&of("any/{*path}"), get(forward::of_any).post(forward::to_any).fallback(get_or_post))
        .route("/v1/peers/{*path}", any(peers::peers))
        .route(&of("slots"), get(slots::slots).fallback(get_only))
        .route(&of("drained"), get(slots::drained).fallback(get_only))
        .route("/v1/outbox", get(outbox::status).fallback(get_only))
        .route("/v1/outbox/replay", post(outbox::replay).fallback(post_only))
        .route("/v1/policies", get(slots::policies).fallback(get_only))
        .route(page::ROOT, get(page::root).fallback(get_only))
        .route("/assets/{name}", get(page::asset).fallback(get_only))
        .route("/livez", get(health::livez).fallback(get_only))
        .route("/readyz", get(health::readyz).fallback(get_only))
        .route("/metrics", get(health::metrics).fallback(get_only))
        .route("/openapi.json", get(health::document).fallback(get_only))
        .fallback(|| async { Problem::not_found("there is nothing at this path; /openapi.json lists what there is") })
        .layer(from_fn_with_state(Arc::clone(app), gate))
        .with_state(Arc::clone(app))
}
