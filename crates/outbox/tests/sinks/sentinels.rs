//! Redis with Sentinels: a primary with two replicas, and real failovers.

use std::net::SocketAddr;
use std::time::Duration;

use shardwise_outbox::exercise::deliveries;
use shardwise_outbox::sink::{Acceptance, RedisConfig, RedisSink, Template, TlsFiles};
use shardwise_outbox::{Delivery, ErrorKind, Sink};
use shardwise_testkit::{Authority, Redis, RedisOptions, Sentinels};
use tokio::time::timeout;

use crate::common::LIMIT;

const SERVER_PASSWORD: &str = "secret";
const SENTINEL_PASSWORD: &str = "watcher";
const STREAM: &str = "order.a";

/// The servers: the first is the primary at the beginning.
struct Stage {
    servers: Vec<Redis>,
    sentinels: Sentinels,
    /// Who signed the certificate of the servers and the Sentinels, if they speak TLS.
    authority: Option<Authority>,
}

/// Waits until `condition` gives something.
async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let found = timeout(LIMIT, async {
        loop {
            match condition().await {
                Some(value) => break value,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    found.await.unwrap_or_else(|_| panic!("waited {LIMIT:?} in vain: {what}"))
}

impl Stage {
    async fn new(options: RedisOptions) -> Self {
        let guarded = options.with_password(SERVER_PASSWORD).with_setting("masterauth", SERVER_PASSWORD);
        let options = guarded.with_setting("repl-diskless-sync-delay", "0");
        let mut servers = vec![Redis::start(options.clone()).await.unwrap()];
        let primary = servers[0].socket_addr();
        for _ in 0..2 {
            servers.push(Redis::start(options.clone().replica_of(primary)).await.unwrap());
        }
        let sentinels = Sentinels::start_guarded(3, &servers[0], 2, SERVER_PASSWORD, SENTINEL_PASSWORD).await.unwrap();
        Self { servers, sentinels, authority: None }
    }

    async fn with_tls() -> Self {
        let authority = Authority::new().unwrap();
        let options = RedisOptions::default().with_tls(&authority.server().unwrap());
        Self { authority: Some(authority), ..Self::new(options).await }
    }

    fn hosts(&self) -> String {
        let addresses = self.sentinels.addresses();
        let hosts: Vec<_> = addresses.iter().map(|address| address.split_once("://").unwrap().1).collect();
        hosts.join(",")
    }

    fn config(&self) -> RedisConfig {
        let scheme = if self.authority.is_some() { "rediss+sentinel" } else { "redis+sentinel" };
        let mut config = config_at(&format!("{scheme}://{}/main", self.hosts()));
        config.tls = TlsFiles { ca: self.authority.as_ref().map(Authority::file), identity: None };
        config
    }

    /// Waits until the replicas have what the primary has now.
    async fn replicated(&self) {
        let offset = async |server: &Redis| {
            let info = server.command(&["INFO", "replication"]).await.unwrap();
            let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
            value("slave_repl_offset:").or_else(|| value("master_repl_offset:")).unwrap_or_default()
        };
        let written = offset(&self.servers[0]).await;
        for replica in &self.servers[1..] {
            eventually("the replica has everything", async || (offset(replica).await >= written).then_some(())).await;
        }
    }

    /// The ids of the stream's entries at that server.
    async fn ids(&self, server: SocketAddr) -> Vec<String> {
        let server = self.servers.iter().find(|one| one.socket_addr() == server).unwrap().plain_addr();
        let client = redis::Client::open(format!("redis://:{SERVER_PASSWORD}@{server}")).unwrap();
        let patient = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(LIMIT)).set_response_timeout(Some(LIMIT));
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
        let entries: Vec<(String, Vec<Vec<u8>>)> =
            redis::cmd("XRANGE").arg(STREAM).arg("-").arg("+").query_async(&mut connection).await.unwrap();
        entries.into_iter().map(|(id, _)| id).collect()
    }
}

fn config_at(url: &str) -> RedisConfig {
    let mut config = RedisConfig::from_url(url, "/outbox/test").unwrap().password(SERVER_PASSWORD);
    config.stream = Template::parse("{aggregatetype}.{aggregateid}").unwrap();
    if url.contains("+sentinel") { config.sentinel_login(None, SENTINEL_PASSWORD).unwrap() } else { config }
}

/// Sends until everything is accepted; nothing may be refused for ever.
async fn deliver(sink: &RedisSink, events: &[Delivery]) {
    eventually("the events are accepted", async || {
        let answer = sink.deliver(events.into()).await;
        assert!(answer.refusals().all(|refusal| !refusal.permanent), "{answer:?}");
        (answer == Acceptance::all(events)).then_some(())
    })
    .await;
}

/// The primary dies.
async fn a_failover_is_followed(stage: &Stage) {
    let sink = RedisSink::new(stage.config());
    let events = deliveries("a", 1, 4);
    deliver(&sink, &events[..2]).await;
    stage.replicated().await;
    let former = stage.servers[0].socket_addr();
    stage.servers[0].kill().unwrap();
    let refused = sink.deliver(events[2..].into()).await;
    assert!(refused.refusals().next().is_some_and(|refusal| !refusal.permanent), "{refused:?}");
    let primary = stage.sentinels.primary_other_than(former).await.unwrap();
    deliver(&sink, &events[2..]).await;
    assert_eq!(stage.ids(primary).await, ["1-0", "2-0", "3-0", "4-0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_redis_is_followed_and_what_was_replicated_is_there() {
    a_failover_is_followed(&Stage::new(RedisOptions::default()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_valkey_is_followed_and_what_was_replicated_is_there() {
    a_failover_is_followed(&Stage::new(RedisOptions::default().valkey()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_over_tls_is_followed_and_what_was_replicated_is_there() {
    a_failover_is_followed(&Stage::with_tls().await).await;
}

/// Without this, a sink that fell back to a connection without TLS would pass too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_the_sentinels_is_checked_and_tls_is_never_left_out() {
    let stage = Stage::with_tls().await;
    let trusting = RedisSink::new(stage.config());
    eventually("they are trusted", async || trusting.check().await.ok()).await;
    let stranger = Authority::new().unwrap();
    let mut astray = stage.config();
    astray.tls = TlsFiles { ca: Some(stranger.file()), identity: None };
    let plain = config_at(&format!("redis+sentinel://{}/main", stage.hosts()));
    for (config, expected) in [
        (astray, "set sink_ca_file to the certificate of its issuer"),
        (plain, "speaks TLS only: write rediss instead of redis in the address in sink"),
    ] {
        let sink = RedisSink::new(config);
        // One that has not answered in time decides, because it may come back.
        let error = eventually("it says why", async || sink.check().await.err().filter(|error| !error.is_retryable())).await;
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains(expected), "{error}");
        let answer = sink.deliver(deliveries("a", 1, 1).into()).await;
        assert!(answer.refusals().next().is_some_and(|refusal| !refusal.permanent), "{answer:?}");
    }
    assert!(stage.ids(stage.servers[0].socket_addr()).await.is_empty(), "nothing was added");
}

/// An operator has another server become the primary: the former one lives on as a replica, and takes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_is_followed_and_a_dead_sentinel_is_passed_over() {
    let stage = Stage::new(RedisOptions::default()).await;
    stage.sentinels.kill(0).unwrap();
    let sink = RedisSink::new(stage.config());
    let events = deliveries("a", 1, 6);
    deliver(&sink, &events[..2]).await;
    stage.replicated().await;
    let former = stage.servers[0].socket_addr();
    eventually("the failover is ordered", async || stage.sentinels.fail_over_by(1).await.ok()).await;
    // In the middle of it, too, an event is accepted by the present primary or not at all.
    deliver(&sink, &events[2..4]).await;
    let named = async || stage.sentinels.named_by(1).await.ok().filter(|named| *named != former);
    let primary = eventually("another primary is named", named).await;
    eventually("the former one is a replica", async || {
        let info = stage.servers[0].command(&["INFO", "replication"]).await.ok()?;
        info.contains("role:slave").then_some(())
    })
    .await;
    deliver(&sink, &events[4..]).await;
    let ids = stage.ids(primary).await;
    assert!(ids.ends_with(&["5-0".to_owned(), "6-0".to_owned()]) && ids.is_sorted() && ids.starts_with(&["1-0".to_owned()]), "{ids:?}");
}

/// Replication is asynchronous: what no replica had is lost, though it was accepted, and consumers see the gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_failover_forgets_is_a_gap_before_the_next_event() {
    let stage = Stage::new(RedisOptions::default()).await;
    let sink = RedisSink::new(stage.config());
    let events = deliveries("a", 1, 3);
    deliver(&sink, &events[..1]).await;
    stage.replicated().await;
    // From here on the replicas hear nothing: they stand still, and what is written is not even sent.
    for replica in &stage.servers[1..] {
        replica.pause().unwrap();
    }
    stage.servers[0].command(&["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
    deliver(&sink, &events[1..2]).await;
    let former = stage.servers[0].socket_addr();
    stage.servers[0].kill().unwrap();
    for replica in &stage.servers[1..] {
        replica.resume().unwrap();
    }
    let primary = stage.sentinels.primary_other_than(former).await.unwrap();
    deliver(&sink, &events[2..]).await;
    assert_eq!(stage.ids(primary).await, ["1-0", "3-0"]);
    // Its place is gone, so it cannot be added to this stream any more.
    let late = sink.deliver(events[1..2].into()).await;
    assert!(late.refusals().next().is_some_and(|refusal| refusal.permanent), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_sentinels_names_and_passwords_are_reported() {
    let stage = Stage::new(RedisOptions::default()).await;
    let (hosts, server) = (stage.hosts(), stage.servers[0].socket_addr());
    let denied = [
        (stage.config().password("wrong"), "correct the user in sink and the password in sink_password_file"),
        (stage.config().sentinel_login(None, "wrong").unwrap(), "the password in sink_sentinel_password_file"),
        (RedisConfig::from_url(&format!("redis+sentinel://{hosts}/main"), "/").unwrap(), "sink_sentinel_password_file"),
    ];
    for (config, expected) in denied {
        let error = RedisSink::new(config).check().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains(expected), "{error}");
    }
    let of = async |url: &str, password: &str| {
        let config = RedisConfig::from_url(url, "/").unwrap().sentinel_login(None, password).unwrap();
        RedisSink::new(config).check().await.unwrap_err()
    };
    let error = of(&format!("redis+sentinel://{hosts}/other"), SENTINEL_PASSWORD).await;
    assert!(error.kind() == ErrorKind::Missing && error.to_string().contains("know no primary named \"other\""), "{error}");
    let error = of(&format!("redis+sentinel://{server}/main"), SERVER_PASSWORD).await;
    assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("is no Sentinel"), "{error}");
    let error = of("redis+sentinel://127.0.0.1:1/main", SENTINEL_PASSWORD).await;
    assert!(error.is_retryable() && error.to_string().contains("127.0.0.1:1"), "{error}");
    // A Sentinel where a server should be.
    let one = hosts.split(',').next().unwrap();
    let config = RedisConfig::from_url(&format!("redis://{one}"), "/").unwrap().password(SENTINEL_PASSWORD);
    let answer = RedisSink::new(config).deliver(deliveries("a", 1, 1).into()).await;
    let refusal = answer.refusals().next().unwrap();
    assert!(!refusal.permanent && refusal.message.contains("write redis+sentinel://"), "{answer:?}");
    assert!(stage.ids(server).await.is_empty(), "nothing was added");
}
