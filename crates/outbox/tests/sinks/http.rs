//! HTTP webhooks, on a server in this process.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use shardwise_outbox::exercise::{self, SinkHarness, SinkServer, deliveries};
use shardwise_outbox::sink::{Acceptance, HttpConfig, HttpSink, Mode, parse_line};
use shardwise_outbox::{ErrorKind, Sink};
use shardwise_testkit::{Direction, TcpProxy};

use crate::common::{decoded, rich};

/// Larger than the largest event of the suite.
const BODY_MAX: usize = 3 << 20;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

type Answer = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// The requests that the server has received, and how it answers; both outlive it.
#[derive(Clone)]
struct Consumer {
    taken: Arc<Mutex<Vec<Request>>>,
    answer: Answer,
}

async fn handle(State(consumer): State<Consumer>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    // Read the body to its end first: a server that closes in the middle may reset the connection before its answer is read.
    if body.len() > BODY_MAX {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let request = Request { method, uri, headers, body };
    let answer = (consumer.answer)(&request);
    if answer.status().is_success() {
        consumer.taken.lock().unwrap().push(request);
    }
    answer
}

/// A server with a separate runtime, so that stopping it ends all its connections.
pub(crate) struct Server {
    runtime: Mutex<Option<tokio::runtime::Runtime>>,
    pub(crate) address: SocketAddr,
    consumer: Consumer,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let consumer = Consumer { taken: Arc::default(), answer: Arc::new(answer) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = Mutex::new(Some(serve(listener, consumer.clone())));
        Self { runtime, address, consumer }
    }

    /// Stops listening at the address.
    pub(crate) fn stop(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_background();
        }
    }

    pub(crate) fn restart(&self) {
        self.stop();
        let begun = std::time::Instant::now();
        let listener = loop {
            match std::net::TcpListener::bind(self.address) {
                Ok(listener) => break listener,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{}: {error}", self.address),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        *self.runtime.lock().unwrap() = Some(serve(listener, self.consumer.clone()));
    }

    pub(crate) fn taken(&self) -> Vec<Request> {
        self.consumer.taken.lock().unwrap().clone()
    }

    pub(crate) fn config(&self, path: &str) -> HttpConfig {
        let mut config = HttpConfig::from_url(&format!("http://{}{path}", self.address), "/outbox/test").unwrap();
        config.allow_private = true;
        config
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(listener: std::net::TcpListener, consumer: Consumer) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    listener.set_nonblocking(true).unwrap();
    let router = Router::new().fallback(handle).layer(DefaultBodyLimit::disable()).with_state(consumer);
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        axum::serve(listener, router).await.unwrap();
    });
    runtime
}

pub(crate) fn ok(_: &Request) -> Response {
    StatusCode::NO_CONTENT.into_response()
}

struct Harness {
    server: Server,
    proxy: TcpProxy,
}

#[async_trait]
impl SinkHarness for Harness {
    async fn open(&self) -> Arc<dyn Sink> {
        let url = format!("http://{}/hook/{{aggregatetype}}?id={{aggregateid}}", self.proxy.address());
        let mut config = HttpConfig::from_url(&url, "/outbox/test").unwrap();
        config.allow_private = true;
        Arc::new(HttpSink::new(config).unwrap())
    }

    async fn arrived(&self) -> Vec<(String, u64, String)> {
        let event = |request: Request| {
            let read = parse_line(&request.body).unwrap();
            (read.key, read.sequence, read.id)
        };
        self.server.taken().into_iter().map(event).collect()
    }

    fn server(&self) -> Option<&dyn SinkServer> {
        Some(self)
    }
}

#[async_trait]
impl SinkServer for Harness {
    async fn restart(&self) {
        self.server.restart();
    }

    async fn lose_answers(&self, lose: bool) {
        if lose {
            self.proxy.cut(Direction::ToClient);
        } else {
            self.proxy.reset();
            self.proxy.heal().await.unwrap();
        }
    }

    fn drops_repeats(&self) -> bool {
        false
    }

    fn too_large(&self) -> usize {
        BODY_MAX
    }

    async fn open_as_stranger(&self) -> Option<Arc<dyn Sink>> {
        // A webhook cannot be checked without an event: see the test of answers.
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_a_sink() {
    exercise::sink(|| async {
        let server = Server::start(ok);
        let proxy = TcpProxy::start(server.address).await.unwrap();
        Harness { server, proxy }
    })
    .await;
}

#[tokio::test]
async fn a_request_has_the_event_a_signature_and_a_key_against_repetition() {
    let server = Server::start(ok);
    let event = rich("a.b/..c");
    for mode in [Mode::Binary, Mode::Structured] {
        let mut config = server.config("/{aggregatetype}/{aggregateid}");
        config.mode = mode;
        let sink = HttpSink::new(config.signing_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()).unwrap();
        assert_eq!(sink.deliver([event.clone()].into()).await, Acceptance::all(std::slice::from_ref(&event)));
    }
    let taken = server.taken();
    for (request, content_type) in taken.iter().zip(["application/json", "application/cloudevents+json; charset=utf-8"]) {
        assert_eq!((&request.method, request.uri.path()), (&Method::POST, "/order/a%2Eb%2F%2E%2Ec"));
        let header = |name: &str| request.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap();
        assert_eq!((header("content-type"), header("idempotency-key"), header("webhook-id")), (content_type, "a.b/..c-1", "a.b/..c-1"));
        assert_eq!(header("traceparent"), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let at: u64 = header("webhook-timestamp").parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(at) < 300, "{at} is not now");
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &base64("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
        let signed = [format!("a.b/..c-1.{at}.").as_bytes(), &request.body[..]].concat();
        let signature = base64(header("webhook-signature").strip_prefix("v1,").unwrap());
        ring::hmac::verify(&key, &signed, &signature).unwrap();
    }
    let header = |name: &str| decoded(taken[0].headers[name].to_str().unwrap());
    assert_eq!((header("ce-sequence"), header("ce-shardslot"), header("ce-shardepoch")), ("1".into(), "7".into(), "9".into()));
    assert_eq!((header("ce-subject"), header("ce-tenant")), ("order/a.b/..c".into(), "ü 1".into()));
    assert_eq!(&taken[0].body[..], br#"{"n":1}"#);
    assert_eq!(parse_line(&taken[1].body).unwrap().key, "order/a.b/..c");
}

fn base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

#[tokio::test]
async fn answers_mean_what_they_say() {
    let server = Server::start(|request| {
        let status: u16 = request.uri.path().trim_start_matches('/').parse().unwrap();
        let mut answer = (StatusCode::from_u16(status).unwrap(), "the\nbody").into_response();
        answer.headers_mut().insert("retry-after", "120".parse().unwrap());
        answer.headers_mut().insert("location", "/200".parse().unwrap());
        answer
    });
    for (status, permanent, expected) in [
        (301, false, "answers 301: redirects are not followed, correct the address"),
        (400, true, "answers 400, and says: the body"),
        (401, false, "answers 401: correct the token or the signing secret"),
        (403, false, "answers 403: correct the token"),
        (404, true, "answers 404"),
        (408, false, "answers 408"),
        (413, true, "answers 413"),
        (425, false, "answers 425"),
        (429, false, "answers 429"),
        (500, false, "answers 500"),
        (503, false, "answers 503"),
    ] {
        let sink = HttpSink::new(server.config(&format!("/{status}"))).unwrap();
        let answer = sink.deliver(deliveries("a", 1, 2).into()).await;
        let refusal = answer.refusals().next().unwrap();
        assert_eq!((refusal.permanent, refusal.retry_after), (permanent, Some(Duration::from_mins(2))), "{status}");
        assert!(refusal.message.contains(expected), "{refusal}");
    }
    assert!(server.taken().is_empty(), "nothing followed the redirect");
}

#[tokio::test]
async fn an_answer_that_never_ends_is_cut_and_one_that_never_comes_is_given_up() {
    let server = Server::start(|request| {
        if request.uri.path() == "/endless" {
            let parts = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 4096])));
            return (StatusCode::OK, Body::from_stream(parts)).into_response();
        }
        let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        (StatusCode::INTERNAL_SERVER_ERROR, Body::from_stream(never)).into_response()
    });
    let batch = deliveries("a", 1, 1);
    let endless = HttpSink::new(server.config("/endless")).unwrap();
    assert_eq!(endless.deliver(batch.clone().into()).await, Acceptance::all(&batch));
    let mut config = server.config("/silent");
    config.timeout = Duration::from_secs(2);
    let silent = HttpSink::new(config).unwrap();
    let answer = silent.deliver(batch.into()).await;
    assert!(answer.refusals().next().unwrap().message.contains("answers 500"), "{answer:?}");
}

#[tokio::test]
async fn private_addresses_are_called_only_if_allowed() {
    let server = Server::start(ok);
    let mut config = server.config("/");
    config.allow_private = false;
    let error = HttpSink::new(config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Settings);
    assert!(error.to_string().contains("127.0.0.1 has no public address"), "{error}");
    // A host name is judged only when it has been resolved.
    let mut by_name = HttpConfig::from_url(&format!("http://localhost:{}/", server.address.port()), "/").unwrap();
    let answer = HttpSink::new(by_name.clone()).unwrap().deliver(deliveries("a", 1, 1).into()).await;
    assert!(answer.refusals().next().unwrap().message.contains("localhost has no public address"), "{answer:?}");
    assert!(server.taken().is_empty());
    let batch = deliveries("a", 1, 1);
    by_name.allow_private = true;
    assert_eq!(HttpSink::new(by_name).unwrap().deliver(batch.clone().into()).await, Acceptance::all(&batch));
}

/// Writers of events choose names but must not choose the path: also with a server that decodes before it splits, or splits at
/// backslashes.
#[tokio::test]
async fn no_events_names_lead_out_of_the_webhooks_path() {
    let server = Server::start(ok);
    let sink = HttpSink::new(server.config("/in/{aggregateid}/end?of={aggregateid}")).unwrap();
    let ids = ["..", ".", "a/../b", "../..", "a\\..\\b", "./a", "a/..", "..;v=1", "/../admin"];
    for id in ids {
        let answer = sink.deliver(deliveries(id, 1, 1).into()).await;
        let refusal = answer.refusals().next().unwrap_or_else(|| panic!("{id:?} was sent"));
        assert!(refusal.permanent && refusal.message.contains("a part . or .. of the URL's path"), "{id:?}: {refusal:?}");
    }
    assert!(server.taken().is_empty());
    for id in ["...", "a..b", "a.b", "%2e%2e", "a/b", ". ."] {
        let batch = deliveries(id, 1, 1);
        assert_eq!(sink.deliver(batch.clone().into()).await, Acceptance::all(&batch), "{id:?} leads nowhere else");
    }
    let query = HttpSink::new(server.config("/in?of={aggregateid}")).unwrap();
    let batch = deliveries("../..", 1, 1);
    assert_eq!(query.deliver(batch.clone().into()).await, Acceptance::all(&batch), "a query has no parts");
}

/// An address may contain a secret anywhere, even if it cannot be parsed.
#[test]
fn no_error_shows_what_an_address_has_in_it() {
    for (url, expected) in [
        ("https://me:secret@host/{", "put a token into a file"),
        ("https://{secret}@host/", "put a token into a file"),
        ("https://host/?token=secret&x={", "has a { without its }"),
        ("https://host/?token=secret}", "has a } without its {"),
        ("https://host/?token={secret}", "has a name in braces that is not known"),
    ] {
        let error = HttpConfig::from_url(url, "/").unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    }
}
