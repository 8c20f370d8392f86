//! A monitor that evaluates alert rules, one process a machine, each a member of the group itself. Three levels:
//!
//! 1. Each rule is evaluated by exactly one monitor, which holds it: `alert_monitor run SETTINGS POLICY`
//! 2. A command goes to one monitor:   `alert_monitor silence POLICY URL INSTANCE RULE`
//! 3. The status of one, or of all:    `alert_monitor status POLICY URL [INSTANCE]`
//!    What any monitor can answer:     `alert_monitor rules POLICY URL`
//!
//! SETTINGS is a file such as `examples/alert_monitor.toml`, and URL is a sidecar's that forwards requests to the monitors:
//! `shardwise serve --settings SETTINGS --observe POLICY`. A command also needs the tokens of the operator (`--token-file`, and
//! `SHARDWISE_TOKEN` here) and of the members (`peer_token_file`). Replace `evaluate` by yours. All output is JSON, one line each.
//!
//! `cargo run -p shardwise-examples --example alert_monitor -- run examples/alert_monitor.toml alert_monitors`
//!
//! `clients/python/examples` and `clients/typescript/examples` have the same for workers that lease from a sidecar.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::BTreeSet;
use std::env;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::{Value, json};
use shardwise::requests::{Answer, Method, Request, encoded};
use shardwise::{OwnershipMode, ShardingFactory, ShardingService};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const RULES: [&str; 8] =
    ["cpu-high", "memory-high", "disk-high", "latency-high", "errors-high", "queue-high", "certificates-high", "backups-high"];
const ROUND: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", settings, policy] => run(settings, policy).await,
        ["silence", policy, url, instance, rule] => SidecarClient { policy, url }.silence(instance, rule).await,
        ["status", policy, url] => SidecarClient { policy, url }.status(None).await,
        ["status", policy, url, instance] => SidecarClient { policy, url }.status(Some(instance)).await,
        ["rules", policy, url] => SidecarClient { policy, url }.rules().await,
        _ => Err("the verbs are run, silence, status and rules; the head of this file has their arguments".into()),
    }
}

/// Prints one line of JSON.
fn report(did: &str, mut more: Value) {
    more["did"] = did.into();
    println!("{more}");
}

/// What one monitor is doing, as its answer at `status`.
#[derive(Default, Serialize)]
struct Doing {
    rules: BTreeSet<&'static str>,
    silenced: BTreeSet<&'static str>,
    evaluations: u64,
}

#[derive(Default)]
struct Monitor(Mutex<Doing>);

impl Monitor {
    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evaluates one rule again and again, until this monitor must hand it over or has lost it.
    async fn evaluate(&self, sharding: &ShardingService, rule: &'static str, cancel: &CancellationToken) {
        // `run_owned` has a guard too, but does not show its fence. Without either the rule is lost already, and `cancel` follows.
        let Ok(guard) = sharding.enter(rule) else { return };
        let Some(fence) = guard.fence() else { return };
        self.doing().rules.insert(rule);
        report("began", json!({"rule": rule, "slot": fence.slot, "epoch": fence.epoch}));
        // It looks before each piece of work, because another monitor may evaluate the rule as soon as this one does not hold it.
        while guard.is_held() && !cancel.is_cancelled() {
            // Here a real one reads its metrics. What it writes carries the fence, so that a monitor that was paused overwrites nothing.
            let is_silenced = {
                let mut doing = self.doing();
                doing.evaluations += 1;
                doing.silenced.contains(rule)
            };
            if !is_silenced {
                report("evaluated", json!({"rule": rule, "epoch": fence.epoch}));
            }
            let _ = tokio::time::timeout(ROUND, cancel.cancelled()).await;
        }
        self.doing().rules.remove(rule);
        report("ended", json!({"rule": rule}));
    }

    fn silence(&self, request: &Request) -> std::result::Result<Value, Answer> {
        let wanted = request.json::<Value>().ok().filter(|_| request.method == Method::Post);
        let Some(rule) = wanted.and_then(|wanted| RULES.into_iter().find(|rule| wanted["rule"] == *rule)) else {
            let detail = format!("POST {{\"rule\": R}}, where R is one of {}", RULES.join(", "));
            return Err(Answer::problem(400, "unknown-rule", "There is no such rule", &detail));
        };
        let mut doing = self.doing();
        doing.silenced.insert(rule);
        report("silenced", json!({"rule": rule}));
        Ok(json!({"silenced": doing.silenced}))
    }
}

/// Answers requests to this monitor, and what any monitor can answer.
fn answer(sharding: &ShardingService, monitor: &Arc<Monitor>) -> shardwise::Result<()> {
    let [status, silence] = [Arc::clone(monitor), Arc::clone(monitor)];
    sharding.on_request("status", move |_| ready(Answer::json(&*status.doing())))?;
    sharding.on_request("silence", move |request| ready(silence.silence(&request)))?;
    sharding.on_any("rules", |_| ready(json!({"rules": RULES})))
}

/// Evaluates the rules that this monitor holds, until SIGTERM or Ctrl-C.
async fn run(settings: &str, policy: &str) -> Result {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let sharding = ShardingFactory::from_file(settings)?.create(policy)?;
    if sharding.policy().ownership != OwnershipMode::Exclusive {
        return Err(format!("set ownership = \"exclusive\" in the policy {policy}: else two monitors may evaluate one rule").into());
    }
    let monitor = Arc::new(Monitor::default());
    answer(&sharding, &monitor)?;
    // Before it joins, so that its record has the address.
    let address = sharding.listen_for_requests().await?;
    report("listening", json!({"address": address.to_string()}));
    let mut changes = sharding.rebalances();
    let service = sharding.clone();
    let running = sharding.run_owned(RULES, move |rule, cancel| {
        let (monitor, service) = (Arc::clone(&monitor), service.clone());
        async move { monitor.evaluate(&service, rule, &cancel).await }
    });
    sharding.register_self().await?;
    loop {
        tokio::select! {
            Some(change) = changes.recv() => {
                let rules = sharding.count_owned_items(&RULES);
                report("rebalanced", json!({"gained": change.gained.len(), "lost": change.lost.len(), "rules": rules}));
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    running.stop().await;
    // The others take over at once, instead of after the TTL.
    sharding.deregister_self().await?;
    report("left", json!({}));
    Ok(())
}

/// A sidecar that knows the group.
struct SidecarClient<'a> {
    policy: &'a str,
    url: &'a str,
}

impl SidecarClient<'_> {
    /// A GET, or with a body a POST. Returns the member that answered, and its answer.
    async fn ask(&self, path: &str, body: Option<Value>) -> Result<(String, Value)> {
        let host = self.url.strip_prefix("http://").ok_or("URL is http://HOST:PORT")?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(TcpStream::connect(host).await?)).await?;
        tokio::spawn(connection);
        let mut request = hyper::Request::builder().uri(format!("/v1/policies/{}/{path}", self.policy)).header(HOST, host);
        if let Ok(token) = env::var("SHARDWISE_TOKEN") {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.method("POST").header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let response = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
        let by = response.headers().get("shardwise-instance").and_then(|by| by.to_str().ok()).unwrap_or_default().to_owned();
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&answer)).into());
        }
        Ok((by, serde_json::from_slice(&answer)?))
    }

    async fn silence(&self, instance: &str, rule: &str) -> Result {
        let (_, answer) = self.ask(&format!("instances/{}/silence", encoded(instance)), Some(json!({"rule": rule}))).await?;
        report("answered", json!({"by": instance, "answer": answer}));
        Ok(())
    }

    /// Of one, or of all. One that is dead and still has a record does not answer; the others do.
    async fn status(&self, instance: Option<&str>) -> Result {
        let (_, group) = self.ask("members", None).await?;
        let all = group["members"].as_array().into_iter().flatten().filter_map(|member| member["instance_id"].as_str());
        let instances: Vec<&str> = instance.map_or_else(|| all.collect(), |instance| vec![instance]);
        for by in instances {
            match self.ask(&format!("instances/{}/status", encoded(by)), None).await {
                Ok((_, answer)) => report("answered", json!({"by": by, "answer": answer})),
                Err(error) => report("unanswered", json!({"by": by, "why": error.to_string()})),
            }
        }
        Ok(())
    }

    async fn rules(&self) -> Result {
        let (by, answer) = self.ask("any/rules", None).await?;
        report("answered", json!({"by": by, "answer": answer}));
        Ok(())
    }
}
