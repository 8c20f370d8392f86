//! Wrong settings from a user's point of view: soon one line that names the setting and the cause, and no secret anywhere.

mod consul;
mod etcd;
mod others;

use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use shardwise_testkit::{Authority, CertIdentity, TcpProxy};
use tokio::runtime::Runtime;

use crate::common::process::Process;
use crate::common::{Place, Ran, run};
use crate::meeting::{Kind, SOON, make_tables, policy};

/// The time limit from the start of the program to its end.
const REPORTED_MAX: Duration = Duration::from_secs(10);
/// The number of mistakes tested at a time, by two processes each.
const AT_ONCE: usize = 4;
/// Exit codes: only the settings are wrong; a retry may help; an operator has to change something.
const USAGE: i32 = 2;
const UNAVAILABLE: i32 = 3;
const REFUSED: i32 = 4;
/// Used as every wrong secret.
const WRONG: &str = "5d2a8e40-0000-4000-8000-wrong0secret";
const WATCH: [&str; 4] = ["watch", "--join", "--policy", "workers"];

struct Table {
    kind: Kind,
    address: String,
    /// Further lines.
    more: String,
}

impl Table {
    /// Every token and password in it, right or wrong.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let values = self.more.lines().filter_map(|line| line.strip_prefix("token = ").or(line.strip_prefix("password = ")));
        values.map(|value| value.trim_matches('"'))
    }

    fn place(&self) -> Place {
        // The default TTL, because a user with wrong settings has hardly set anything else yet.
        Place::with_settings(&(self.kind.settings(&self.address, "10s", &self.more) + &policy("workers", "")))
    }
}

/// A mistake, and the required parts of its message.
struct Mistake {
    table: Table,
    code: i32,
    parts: Vec<String>,
}

/// The mistakes of one backend: servers and ports that are kept meanwhile (a released port could become another test's server), the
/// mistakes, and correct settings with their secret.
struct Case {
    _servers: Box<dyn Any>,
    mistakes: Vec<Mistake>,
    right: Table,
    secret: &'static str,
}

on_all!(a_mistake_is_reported_in_one_line_within_ten_seconds_and_nothing_secret_ever);

fn a_mistake_is_reported_in_one_line_within_ten_seconds_and_nothing_secret_ever(kind: Kind) {
    let runtime = Runtime::new().unwrap();
    let case = match kind {
        Kind::Consul => runtime.block_on(consul::case()),
        Kind::Etcd => runtime.block_on(etcd::case()),
        Kind::Nats => runtime.block_on(others::nats()),
        Kind::Postgres => runtime.block_on(others::postgres()),
        Kind::Valkey => runtime.block_on(others::valkey()),
    };
    let next = AtomicUsize::new(0);
    let some = || std::iter::from_fn(|| case.mistakes.get(next.fetch_add(1, Ordering::Relaxed))).filter_map(|one| check(one).err());
    let found: Vec<_> = std::thread::scope(|scope| {
        let checks: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| some().collect::<Vec<_>>())).collect();
        checks.into_iter().flat_map(|check| check.join().unwrap()).collect()
    });
    assert!(found.is_empty(), "{}", found.join("\n\n"));
    without_a_mistake(&case);
}

/// Makes the mistake twice at once: with default logging, and with every log level.
fn check(mistake: &Mistake) -> Result<(), String> {
    let place = mistake.table.place();
    let (plain, mut traced) = (place.command(&WATCH), place.command(&WATCH));
    traced.env("RUST_LOG", "trace");
    let traced = std::thread::spawn(|| run(traced, b""));
    let begun = Instant::now();
    let output = run(plain, b"");
    let took = begun.elapsed();
    let traced = traced.join().unwrap();
    // A note about the wait is printed after two seconds and before the end.
    let (waiting, end): (Vec<_>, Vec<_>) = output.err.lines().partition(|line| line.contains("still waiting for"));
    let one_line = end.len() == 1 && end[0].starts_with("shardwise: ") && waiting.len() <= 1;
    let missing: Vec<_> = mistake.parts.iter().filter(|part| !output.err.contains(*part)).collect();
    if !one_line || output.code != Some(mistake.code) || !missing.is_empty() || took > REPORTED_MAX {
        return Err(format!("expected code {}, {:?}; after {took:?} {output:?}\nmissing: {missing:?}", mistake.code, mistake.parts));
    }
    println!("{:>5} ms  {}", took.as_millis(), output.err.trim_end());
    let secrets: Vec<_> = mistake.table.secrets().collect();
    secrets.iter().try_for_each(|secret| without(secret, &output).and_then(|()| without(secret, &traced)))
}

fn without(secret: &str, ran: &Ran) -> Result<(), String> {
    let out = String::from_utf8_lossy(&ran.out);
    ran.err.lines().chain(out.lines()).find(|line| line.contains(secret)).map_or(Ok(()), |line| Err(format!("a secret is in: {line}")))
}

/// With correct settings, a whole run at every log level shows no secret either.
fn without_a_mistake(case: &Case) {
    let place = case.right.place();
    make_tables(case.right.kind, &place);
    let mut command = place.command(&WATCH);
    command.env("RUST_LOG", "trace");
    let mut worker = Process::start(command);
    worker.prints_within(SOON, "it is active", |line| line["state"] == "active");
    worker.signal(Signal::SIGTERM);
    let ran = worker.ends("after SIGTERM");
    assert!(ran.code == Some(0) && ran.err.contains("TRACE"), "{ran:?}");
    without(case.secret, &ran).unwrap();
}

fn identified(identity: &CertIdentity) -> String {
    format!("cert_file = \"{}\"\nkey_file = \"{}\"", identity.certificate().display(), identity.key().display())
}

/// A client's certificate whose key has lost its line breaks, as happens in variables.
fn damaged(authority: &Authority) -> CertIdentity {
    let identity = authority.client("damaged").unwrap();
    let key = std::fs::read_to_string(identity.key()).unwrap();
    std::fs::write(identity.key(), key.replace('\n', " ")).unwrap();
    identity
}

/// An address that accepts connections and never answers.
async fn silence(before: SocketAddr) -> TcpProxy {
    let proxy = TcpProxy::start(before).await.unwrap();
    proxy.cut_both();
    proxy
}
