//! A service's side of requests: its handlers, and where requests to it arrive.

use std::net::SocketAddr;
use std::sync::Arc;

use super::handlers::RequestHandlers;
use super::{Answer, Request};
use crate::error::{Result, inside_runtime};
use crate::membership::proof::{Channel, Recipient};
use crate::service::ShardingService;
use crate::settings::PeersSettings;

impl ShardingService {
    /// Answers requests that are brought to this worker at `path`, such as `cache/size`, from now on; `status` is answered without a handler. An earlier
    /// handler of the same path goes. Paths that begin with `shardwise` are its own: `shardwise/status` is answered even where `status` has a handler.
    ///
    /// Requests come through a sidecar of the group (`…/instances/{instance_id}/{path}`, `…/any/{path}`), once this worker listens
    /// (`listen_for_requests`, or a sidecar in this process). A handler has 10 s ([`crate::requests::ANSWER_WITHIN`]), bodies have 1 MiB at most
    /// in both directions, 64 are answered at a time, and a panic is the answer 500.
    ///
    /// The handler lives as long as the service: one that holds the service itself keeps it alive for ever.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Settings`] if that is no path ([`crate::requests::is_path`]), it begins with `shardwise`, or 256 handlers are there.
    pub fn on_request<W, A>(&self, path: &str, handler: impl Fn(Request) -> W + Send + Sync + 'static) -> Result<()>
    where
        W: Future<Output = A> + Send + 'static,
        A: Into<Answer>,
    {
        let handler = Arc::new(handler);
        let boxed = move |request| -> futures::future::BoxFuture<'static, Answer> {
            let handler = Arc::clone(&handler);
            // What the handler does before its first await belongs to the task too.
            Box::pin(async move { handler(request).await.into() })
        };
        self.request_handlers().register(path, Arc::new(boxed))
    }

    /// Listens for requests where the setting `peer_listen` says, and shows the others where that is. Listening twice is listening once.
    ///
    /// Call it before [`ShardingService::register_self`], so that the first record has the address. It ends with the service. Where `peer_token_file`
    /// is set, only callers are answered that prove that they know it; where it is not, `GET` is answered to this machine's programs.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoRuntime`] outside a tokio runtime; [`crate::ErrorKind::Settings`] if it cannot listen there, or others than this machine's programs could connect: that takes TLS, which a sidecar has.
    #[cfg(feature = "requests")]
    pub async fn listen_for_requests(&self) -> Result<SocketAddr> {
        inside_runtime()?;
        super::listener::listen(self.membership()).await
    }

    /// What this worker answers at that path, as if it had been asked by another one.
    pub async fn answer(&self, path: &str, request: Request) -> Answer {
        if let Err(error) = inside_runtime() {
            return Answer::failed(&error.to_string());
        }
        RequestHandlers::answer(self.membership(), path, request).await
    }

    /// Whether this worker answers at that path.
    pub fn answers_at(&self, path: &str) -> bool {
        self.request_handlers().handles(path)
    }

    /// What the path of each request to this worker begins with ([`crate::requests::path_to`]). Another one after the worker has left and joined
    /// again.
    pub fn requests_path(&self) -> String {
        self.request_handlers().path()
    }

    /// For a server that listens in this worker's name: shows the others that requests to it arrive there. Returns the address as the others see it: the host of
    /// `instance.address` where it listens on all addresses or with a certificate.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Settings`] if nothing says where that is, or the metadata gets too long.
    pub fn requests_arrive_at(&self, listening: SocketAddr, tls: bool) -> Result<String> {
        self.request_handlers().arrive_at(listening, tls)
    }

    /// This worker as the one that is asked, for the proofs of requests to it.
    pub fn recipient(&self) -> Recipient<'_> {
        self.membership().recipient(Channel::Requests)
    }

    /// Which members may be asked, and the secret that they prove to know.
    pub fn peers(&self) -> &PeersSettings {
        &self.membership().peers
    }

    fn request_handlers(&self) -> Arc<RequestHandlers> {
        RequestHandlers::of(self.membership())
    }
}
