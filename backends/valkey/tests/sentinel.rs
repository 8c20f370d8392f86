//! A primary with two replicas and three Sentinels: real failovers.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Instant;

use common::{Fleet, PACE, Watching, assert_message, eventually, group, lasting, open, refused_for_good, registration};
use shardwise_backend_valkey::ValkeyConfig;
use shardwise_core::ClaimName;
use shardwise_discovery::{Discovery, ErrorKind, Notes, WriteOutcome};
use shardwise_testkit::{Authority, Redis, RedisOptions, Sentinels};

const SERVER_PASSWORD: &str = "hush-3f9c";
const SENTINEL_PASSWORD: &str = "hush-77aa";

/// The servers: the first is the primary at the beginning.
struct Stage {
    servers: Vec<Redis>,
    sentinels: Sentinels,
    /// Who signed the certificates, if servers and Sentinels demand those and passwords.
    authority: Option<Authority>,
}

/// A primary and two replicas of it.
async fn servers(options: RedisOptions) -> Vec<Redis> {
    let options = options.with_setting("repl-diskless-sync-delay", "0");
    let mut servers = vec![Redis::start(options.clone()).await.unwrap()];
    let primary = servers[0].socket_addr();
    for _ in 0..2 {
        servers.push(Redis::start(options.clone().replica_of(primary)).await.unwrap());
    }
    servers
}

impl Stage {
    async fn new() -> Self {
        let servers = servers(RedisOptions::default()).await;
        let sentinels = Sentinels::start(3, &servers[0], 2).await.unwrap();
        Self { servers, sentinels, authority: None }
    }

    /// The servers have one password, the Sentinels another; all speak TLS and demand certificates of clients.
    async fn guarded(options: RedisOptions) -> Self {
        let authority = Authority::new().unwrap();
        let options = options.with_mutual_tls(&authority.server().unwrap()).with_password(SERVER_PASSWORD);
        let servers = servers(options.with_setting("masterauth", SERVER_PASSWORD)).await;
        let sentinels = Sentinels::start_guarded(3, &servers[0], 2, SERVER_PASSWORD, SENTINEL_PASSWORD).await.unwrap();
        Self { servers, sentinels, authority: Some(authority) }
    }

    fn config(&self) -> ValkeyConfig {
        let open_to_all = ValkeyConfig::with_sentinels(self.sentinels.addresses(), "main");
        let Some(authority) = &self.authority else { return open_to_all };
        let identity = authority.client("worker").unwrap();
        ValkeyConfig {
            password: Some(SERVER_PASSWORD.into()),
            sentinel_password: Some(SENTINEL_PASSWORD.into()),
            ca_file: Some(authority.file()),
            cert_file: Some(identity.certificate()),
            key_file: Some(identity.key()),
            ..open_to_all
        }
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
}

/// The primary dies: members stay, register anew, and no revision falls.
async fn a_failover_is_followed(stage: &Stage) {
    let (one, outside) = (open(&stage.config()), open(&stage.config()));
    eventually("the Sentinels answer", async || one.members(&group()).await.ok()).await;
    let mut fleet = Fleet::new();
    fleet.join(&one, "a", 1).await;
    fleet.join(&one, "b", 2).await;
    let watching = Watching::of(outside.watch(&group(), PACE));
    let revision = watching.shows(&["a", "b"]).await;
    stage.replicated().await;
    let former = stage.servers[0].socket_addr();
    stage.servers[0].kill().unwrap();
    let primary = stage.sentinels.primary_other_than(former).await.unwrap();
    assert_ne!(primary, former);
    eventually("both register anew", async || (fleet.lost() >= 2).then_some(())).await;
    fleet.join(&outside, "c", 3).await;
    let after = watching.shows(&["a", "b", "c"]).await;
    assert!(after > revision, "{after} after {revision}");
    // The members of a worker that died with the primary end too.
    fleet.kill("c");
    watching.shows(&["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_costs_a_registration_each_and_no_member() {
    a_failover_is_followed(&Stage::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_with_passwords_and_certificates_is_followed() {
    a_failover_is_followed(&Stage::guarded(RedisOptions::default()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_password_and_certificate_that_is_wrong_is_named_and_no_password_shown() {
    let (stage, stranger) = (Stage::guarded(RedisOptions::default().valkey()).await, Authority::new().unwrap());
    let (good, foreign) = (stage.config(), stranger.client("worker").unwrap());
    eventually("the good one works", async || open(&good).members(&group()).await.ok()).await;
    let wrong = || Some("hush-wrong".into());
    let certificate = ["the Sentinel", "a client certificate that it accepts", "discovery.valkey.cert_file"];
    let cases = [
        (ValkeyConfig { sentinel_password: None, ..good.clone() }, &["the Sentinel", "set discovery.valkey.sentinel_password"][..]),
        (ValkeyConfig { sentinel_password: wrong(), ..good.clone() }, &["the Sentinel", "discovery.valkey.sentinel_password"]),
        (ValkeyConfig { password: None, ..good.clone() }, &["demands a password", "set discovery.valkey.password"]),
        (ValkeyConfig { password: wrong(), ..good.clone() }, &["the default user", "discovery.valkey.password"]),
        (ValkeyConfig { cert_file: None, key_file: None, ..good.clone() }, &certificate),
        (ValkeyConfig { cert_file: Some(foreign.certificate()), key_file: Some(foreign.key()), ..good.clone() }, &certificate),
        (ValkeyConfig { sentinel_password: None, cert_file: None, key_file: None, ..good.clone() }, &certificate),
    ];
    for (config, names) in cases {
        let (begun, error) = refused_for_good(&config).await;
        assert_message(&error, &ErrorKind::Denied, begun, names);
        assert!(!format!("{error} {config:?}").contains("hush"), "{error}");
    }
    let (begun, error) = refused_for_good(&ValkeyConfig { ca_file: Some(stranger.file()), ..good }).await;
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["the Sentinel", "issuer that is not trusted", "discovery.valkey.ca_file"]);
}

/// A failover that was ordered while the former primary lives: clients follow, though it goes on as a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_is_followed_and_a_dead_sentinel_is_passed_over() {
    let stage = Stage::new().await;
    stage.sentinels.kill(0).unwrap();
    let (one, outside) = (open(&stage.config()), open(&stage.config()));
    let mut fleet = Fleet::new();
    fleet.join(&one, "a", 1).await;
    let watching = Watching::of(outside.watch(&group(), PACE));
    watching.shows(&["a"]).await;
    stage.replicated().await;
    let former = stage.servers[0].socket_addr();
    eventually("the failover is ordered", async || stage.sentinels.fail_over_by(1).await.ok()).await;
    eventually("another primary", async || stage.sentinels.named_by(1).await.ok().filter(|named| *named != former)).await;
    eventually("it registers anew", async || (fleet.lost() >= 1).then_some(())).await;
    watching.shows(&["a"]).await;
    outside.register(&lasting("b", 2)).await.unwrap();
    watching.shows(&["a", "b"]).await;
}

/// What the former primary confirmed and no other server has: it is gone, revisions go on above, and no version of a note is used twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_failover_forgets_is_not_used_again() {
    let stage = Stage::new().await;
    let backend = open(&stage.config());
    let name = ClaimName::new("n").unwrap();
    backend.register(&lasting("kept", 1)).await.unwrap();
    let WriteOutcome::Written(first) = backend.write_note(&group(), &name, 0, "kept").await.unwrap() else {
        unreachable!("there was none")
    };
    stage.replicated().await;
    // From here on the replicas hear nothing: they stand still, and what is written is not even sent.
    for replica in &stage.servers[1..] {
        replica.pause().unwrap();
    }
    stage.servers[0].command(&["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
    let WriteOutcome::Written(forgotten) = backend.write_note(&group(), &name, first, "forgotten").await.unwrap() else {
        unreachable!("as expected")
    };
    for n in 0..20 {
        backend.register(&registration("forgotten", 10 + n)).await.unwrap();
        backend.deregister(&registration("forgotten", 10 + n).record_id()).await.unwrap();
    }
    let shown = backend.members(&group()).await.unwrap().view.revision();
    let former = stage.servers[0].socket_addr();
    stage.servers[0].kill().unwrap();
    for replica in &stage.servers[1..] {
        replica.resume().unwrap();
    }
    stage.sentinels.primary_other_than(former).await.unwrap();
    let view = eventually("a view of the new primary", async || backend.members(&group()).await.ok()).await.view;
    assert_eq!(common::ids(&view), ["kept"]);
    assert!(view.revision() > shown, "{} after {shown}", view.revision());
    let WriteOutcome::Other(Some(there)) = backend.write_note(&group(), &name, forgotten, "x").await.unwrap() else {
        unreachable!("the version that was forgotten is not there")
    };
    assert_eq!((there.text.as_str(), there.version), ("kept", first));
    let WriteOutcome::Written(next) = backend.write_note(&group(), &name, first, "next").await.unwrap() else {
        unreachable!("as expected")
    };
    assert!(next > forgotten, "{next} after {forgotten}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_sentinels_are_named() {
    let stage = Stage::new().await;
    let begun = Instant::now();
    let unknown = open(&ValkeyConfig { master_name: Some("other".into()), ..stage.config() });
    let error = unknown.members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["\"other\"", "discovery.valkey.master_name"]);
    let begun = Instant::now();
    let error = open(&ValkeyConfig::new(stage.sentinels.addresses()[0].clone())).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["is a Sentinel", "discovery.valkey.sentinels"]);
    let begun = Instant::now();
    let no_sentinel = ValkeyConfig::with_sentinels(vec![stage.servers[0].address()], "main");
    let error = open(&no_sentinel).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["discovery.valkey.sentinels"]);
    let none = ValkeyConfig::with_sentinels(vec!["redis://127.0.0.1:1".into()], "main");
    let error = open(&none).members(&group()).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("no Sentinel of discovery.valkey.sentinels answers"), "{error}");
}
