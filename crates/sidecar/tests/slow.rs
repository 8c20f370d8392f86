//! Clients that are slow or never stop sending, against a sidecar in this process with short limits.

#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwise::requests::channel::proof::{Nonce, ProofKind, ProofSession, Recipient};
use shardwise::{ServiceState, Settings, ShardingFactory, ShardingService};
use shardwise_sidecar::{Error, Options, Sidecar, Token};
use tokio::sync::oneshot;

/// Far more than any limit below, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Regression: a signal between `ready` and the first look for one ended the process without leaving the group.
#[test]
fn shutdown_is_looked_for_before_it_is_ready() {
    // Which of the two came first was a matter of chance.
    for _ in 0..20 {
        let sidecar = Sidecar::new(factory("5s"), &["workers".into()], Options::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let looked = AtomicBool::new(false);
        let ready = || {
            assert!(looked.load(Ordering::Relaxed), "nothing listens for signals when it is ready");
            // Ends the run.
            Err(Error::Options("done".into()))
        };
        let shutdown = async {
            looked.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        let ended = sidecar.run(ready, shutdown).map_err(|error| error.to_string());
        assert!(ended.as_ref().is_err_and(|why| why.contains("done")), "{ended:?}");
    }
}

struct Served {
    at: SocketAddr,
    service: ShardingService,
    stop: Option<oneshot::Sender<()>>,
    end: Option<JoinHandle<Result<(), Error>>>,
}

fn served() -> Served {
    served_for(Options::new("127.0.0.1:0".parse().unwrap()).limits.connections)
}

fn served_for(connections: usize) -> Served {
    served_with(|options| options.limits.connections = connections)
}

fn served_with(also: impl FnOnce(&mut Options)) -> Served {
    started("5s", also, || ())
}

fn factory(ttl: &str) -> ShardingFactory {
    let settings = Settings::from_toml_str(&format!(
        "[default.resilience.sharding]\npolicies.workers.group_name = \"workers\"\ndiscovery.backend = \"memory\"\ndiscovery.ttl = \"{ttl}\"",
    ));
    ShardingFactory::from_settings(settings.unwrap()).unwrap()
}

/// Runs `on_renewals` on the thread of the renewals once it has joined.
fn started(ttl: &str, also: impl FnOnce(&mut Options), on_renewals: impl FnOnce() + Send + 'static) -> Served {
    let factory = factory(ttl);
    let service = factory.create("workers").unwrap();
    let mut options = Options::new("127.0.0.1:0".parse().unwrap());
    options.limits.head = Duration::from_secs(1);
    options.limits.stall = Duration::from_secs(1);
    options.limits.body = Duration::from_secs(3);
    also(&mut options);
    let sidecar = Sidecar::new(factory, &["workers".into()], options).unwrap();
    let at = sidecar.address();
    let ((ready, is_ready), (stop, stopped)) = (mpsc::channel(), oneshot::channel::<()>());
    let is_there = move || {
        tokio::spawn(async { on_renewals() });
        ready.send(()).map_err(|_| Error::Options("nobody waits".into()))
    };
    let run = move || sidecar.run(is_there, async { drop(stopped.await) });
    let end = Some(std::thread::spawn(run));
    is_ready.recv_timeout(PATIENCE).unwrap();
    Served { at, service, stop: Some(stop), end }
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn head(&self, rest: &str) -> String {
        format!("POST /v1/policies/workers/owned HTTP/1.1\r\nHost: {}\r\nContent-Type: text/plain\r\n{rest}\r\n", self.at)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.service.state(), ServiceState::Active, "whatever clients do");
        }
        self.stop.take();
        let end = self.end.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            end.unwrap().unwrap().unwrap();
        }
    }
}

fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // Data received before a reset counts.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends a byte from time to time until the other side closes.
fn drip(stream: &TcpStream, every: Duration) -> JoinHandle<Duration> {
    let mut sending = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && sending.write_all(b"x").is_ok() {
            std::thread::sleep(every);
        }
        begun.elapsed()
    })
}

#[test]
fn who_says_nothing_or_takes_long_to_ask_is_let_go() {
    let served = served();
    let mut silent = served.connect();
    assert_eq!(read(&mut silent), "");
    let mut slow = served.connect();
    slow.write_all(b"GET /livez HTTP/1.1\r\nX: ").unwrap();
    let dripping = drip(&slow, Duration::from_millis(100));
    let answer = read(&mut slow);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    drop(slow);
    assert!(dripping.join().unwrap() < PATIENCE);
    let mut kept = served.connect();
    write!(kept, "GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", served.at).unwrap();
    assert!(read(&mut kept).starts_with("HTTP/1.1 200"), "answered, and then closed because nothing more is asked");
}

#[test]
fn a_body_that_comes_byte_by_byte_or_not_at_all_is_refused() {
    let served = served();
    for every in [Duration::from_millis(200), PATIENCE] {
        let mut stream = served.connect();
        stream.write_all(served.head("Content-Length: 100000\r\n").as_bytes()).unwrap();
        let begun = Instant::now();
        // Other clients send nothing at all.
        let dripping = (every < PATIENCE).then(|| drip(&stream, every));
        let answer = read(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("application/problem+json"), "{answer}");
        assert!(begun.elapsed() < PATIENCE);
        drop(stream);
        if let Some(dripping) = dripping {
            assert!(dripping.join().unwrap() < PATIENCE);
        }
    }
}

#[test]
fn who_does_not_read_the_answer_is_not_waited_for() {
    let served = served();
    let mut stream = served.connect();
    let keys = "a-key-that-is-mine-because-i-am-alone\n".repeat(1_000_000);
    stream.write_all(served.head(&format!("Content-Length: {}\r\n", keys.len())).as_bytes()).unwrap();
    let begun = Instant::now();
    let sent = stream.write_all(keys.as_bytes());
    assert!(sent.is_err() && begun.elapsed() < PATIENCE, "38 MB were taken for somebody who reads nothing: {sent:?}");
}

#[test]
fn who_sends_slowly_takes_no_place_of_those_who_are_brought_to_a_member() {
    const TOKEN: &str = "correct-horse-battery-staple";
    let file = std::env::temp_dir().join(format!("shardwise-slow-{}", std::process::id()));
    std::fs::write(&file, TOKEN).unwrap();
    let served = served_with(|options| options.token = Some(Token::from_file(&file).unwrap()));
    std::fs::remove_file(&file).unwrap();
    let asks = |method: &str, rest: &str| {
        let mut stream = served.connect();
        let head = format!("Host: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n{rest}\r\n", served.at);
        write!(stream, "{method} /v1/policies/workers/any/status HTTP/1.1\r\n{head}").unwrap();
        stream
    };
    let mut slow: Vec<TcpStream> = (0..80).map(|_| asks("POST", "Content-Length: 100\r\n")).collect();
    let late = std::thread::spawn(move || slow.iter_mut().map(read).collect::<Vec<_>>());
    let mut times = 0;
    // While they are connected, and once more.
    while !late.is_finished() || times == 0 {
        let answer = read(&mut asks("GET", ""));
        assert!(answer.starts_with("HTTP/1.1 200"), "after {times} times: {answer}");
        times += 1;
    }
    for answer in late.join().unwrap() {
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    let refused = read(&mut asks("GET", "Content-Length: 100\r\n"));
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("a GET has no body"), "{refused}");
}

/// A frame of a member's hello.
fn frame(value: &Value) -> Vec<u8> {
    let text = value.to_string();
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}

/// The next frame; `None` at the end of the connection.
fn framed(stream: &mut TcpStream) -> Option<Value> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut text = vec![0; u32::from_be_bytes(head) as usize];
    stream.read_exact(&mut text).unwrap();
    Some(serde_json::from_slice(&text).unwrap())
}

fn hello(served: &Served, id: &str, nonce: &Nonce) -> Vec<u8> {
    let incarnation = served.service.incarnation().to_string();
    frame(&json!({"shardwise": 3, "group": "workers", "instance_id": id, "incarnation": incarnation, "nonce": nonce.to_string()}))
}

const PEER_TOKEN: &str = "peers-know-this-one-alone";

fn with_peer_token(options: &mut Options) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), PEER_TOKEN).unwrap();
    options.peers.token = Some(Token::from_file(file.path()).unwrap());
}

/// A member's connection that has proven itself, and on which nothing is asked yet.
fn proven(served: &Served) -> TcpStream {
    let (mut stream, callers) = (served.connect(), Nonce::random());
    let id = served.service.instance_id();
    stream.write_all(&hello(served, id.as_str(), &callers)).unwrap();
    let challenge = framed(&mut stream).unwrap()["challenge"].take();
    let own: Nonce = challenge["nonce"].as_str().unwrap().parse().unwrap();
    let recipient = Recipient { group: served.service.group_name(), instance_id: id, incarnation: served.service.incarnation() };
    let session = ProofSession::new(PEER_TOKEN.as_bytes(), &recipient, &callers, &own);
    let proof = session.proof(ProofKind::Confirmation, 0, &[&[]]).to_string();
    stream.write_all(&frame(&json!({"proof": proof}))).unwrap();
    assert_eq!(framed(&mut stream).unwrap(), "ok");
    stream
}

#[test]
fn a_stranger_without_a_peers_token_takes_nothing_of_the_rate() {
    let served = served_with(|options| options.limits.rate = Some(1));
    for _ in 0..10 {
        let mut stream = served.connect();
        stream.write_all(&hello(&served, "nobody", &Nonce::random())).unwrap();
        assert_eq!(framed(&mut stream).unwrap(), "somebody_else");
    }
    let answer = asks(&served, "/v1/policies/workers/ownership");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_member_that_says_hello_slowly_or_nonsense_is_let_go() {
    let served = served_with(with_peer_token);
    let whole = hello(&served, served.service.instance_id().as_str(), &Nonce::random());
    let long = [0_u8, 0, 0x40, 0x01];
    for begun in [&[0][..], &whole[..3], &whole[..whole.len() - 1], &long, b"\0\0\0\x02{}", b"\0\0\0\x03{x}"] {
        let mut stream = served.connect();
        stream.write_all(begun).unwrap();
        assert_eq!(framed(&mut stream), None, "{begun:?}");
    }
    // A proof that does not come, and one that is none.
    let confirmations = [Vec::new(), frame(&json!({"proof": null})), frame(&json!({"proof": "0".repeat(64)}))];
    for confirmation in confirmations {
        let mut stream = served.connect();
        stream.write_all(&whole).unwrap();
        assert!(framed(&mut stream).unwrap()["challenge"].is_object());
        stream.write_all(&confirmation).unwrap();
        let refused = framed(&mut stream);
        assert!(refused == Some(json!("unproven")) || refused.is_none() && confirmation.is_empty(), "{refused:?}");
    }
}

#[test]
fn members_that_have_proven_nothing_make_room_and_others_do_not() {
    let served = served_with(|options| {
        with_peer_token(options);
        options.limits.connections = 2;
    });
    let ownership = "/v1/policies/workers/ownership";
    let mut strangers = [(); 2].map(|()| {
        let mut stream = served.connect();
        stream.write_all(&[0]).unwrap();
        stream
    });
    assert!(asks(&served, ownership).starts_with("HTTP/1.1 200"), "a client takes the place of the first one");
    assert_eq!(framed(&mut strangers[0]), None);
    let members = [(); 2].map(|()| proven(&served));
    assert_eq!(framed(&mut strangers[1]), None);
    let refused = asks(&served, ownership);
    assert!(refused.starts_with("HTTP/1.1 429"), "members are in all places: {refused}");
    assert!(asks(&served, "/livez").starts_with("HTTP/1.1 200"));
    // No member probes: it takes none of the places for probes.
    let mut third = served.connect();
    third.write_all(&hello(&served, served.service.instance_id().as_str(), &Nonce::random())).unwrap();
    assert_eq!(framed(&mut third), None);
    let begun = Instant::now();
    drop(members);
    while !asks(&served, ownership).starts_with("HTTP/1.1 200") {
        assert!(begun.elapsed() < PATIENCE, "a member that has gone keeps its place");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The library's connections to others stay open for half a minute and more.
#[test]
fn a_members_open_connection_does_not_hold_up_the_end() {
    let served = served_with(with_peer_token);
    let _member = proven(&served);
    let begun = Instant::now();
    drop(served);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn what_costs_much_is_asked_so_often_and_no_more_and_ownership_is_reported_all_the_same() {
    let served = served();
    let (begun, is_refused) = (Instant::now(), AtomicBool::new(false));
    // Thirty times, and on a slow machine until there were too many in a second.
    let many = || {
        let mut answers = Vec::new();
        while answers.len() < 30 || !is_refused.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
            let answer = asks(&served, "/v1/policies/workers/members");
            is_refused.fetch_or(!answer.starts_with("HTTP/1.1 200"), Ordering::Relaxed);
            answers.push(answer);
        }
        answers
    };
    let answers: Vec<String> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..10).map(|_| scope.spawn(many)).collect();
        asking.into_iter().flat_map(|asked| asked.join().unwrap()).collect()
    });
    let (answered, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.starts_with("HTTP/1.1 200"));
    assert!(answered.len() >= 100 && !refused.is_empty(), "{} were answered and {} refused", answered.len(), refused.len());
    for refusal in refused {
        let is_told = refusal.contains("application/problem+json") && refusal.contains("such requests a second");
        assert!(refusal.starts_with("HTTP/1.1 429") && is_told, "{refusal}");
    }
    for _ in 0..10 {
        let answer = asks(&served, "/v1/policies/workers/ownership");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn a_thread_of_renewals_that_hangs_is_not_called_alive() {
    let (go_on, hangs) = mpsc::channel::<()>();
    let served = started(
        "1s",
        |_| (),
        move || {
            let _ = hangs.recv();
        },
    );
    let begun = Instant::now();
    let becomes = |status: &str| {
        while !asks(&served, "/livez").starts_with(&format!("HTTP/1.1 {status}")) {
            assert!(begun.elapsed() < PATIENCE, "/livez is not {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    becomes("503");
    drop(go_on);
    becomes("200");
    while served.service.state() != ServiceState::Active {
        assert!(begun.elapsed() < PATIENCE, "it does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The status of a path.
fn asks(served: &Served, path: &str) -> String {
    let mut stream = served.connect();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", served.at).unwrap();
    read(&mut stream)
}

#[test]
fn probes_are_answered_when_all_are_busy_and_who_has_gone_is_noticed() {
    let served = served_for(2);
    let ownership = "/v1/policies/workers/ownership";
    let followers = [(); 2].map(|()| {
        let mut stream = served.connect();
        let path = "/v1/policies/workers/rebalances";
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n", served.at).unwrap();
        let mut text = String::new();
        let mut bytes = [0; 1_024];
        while !text.contains(": following") {
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "no stream: {text}");
            text += &String::from_utf8_lossy(&bytes[..read]);
        }
        stream
    });
    for probe in ["/livez", "/readyz"] {
        assert!(asks(&served, probe).starts_with("HTTP/1.1 200"), "{probe}");
    }
    let refused = asks(&served, ownership);
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("application/problem+json"), "{refused}");
    let begun = Instant::now();
    drop(followers);
    while !asks(&served, ownership).starts_with("HTTP/1.1 200") {
        assert!(begun.elapsed() < Duration::from_secs(25), "whoever follows and has gone keeps his place");
        std::thread::sleep(Duration::from_millis(50));
    }
}
