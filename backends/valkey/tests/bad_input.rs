//! Wrong settings and wrong servers: one line in time that names the setting and the cause. And what passes by itself is worth another try.

mod common;

use std::time::{Duration, Instant};

use common::{
    REPORTED_WITHIN, assert_message, backend, group, key, lasting, next_error, open, refused_for_good, registration, valkey, view_of,
};
use shardwise_backend_valkey::ValkeyConfig;
use shardwise_core::ClaimName;
use shardwise_discovery::{Discovery, ErrorKind, Notes};
use shardwise_testkit::{Authority, CertIdentity, Port, Redis, RedisOptions};
use tokio::net::TcpListener;

#[tokio::test]
async fn what_cannot_be_reached_is_worth_another_try() {
    let port = Port::reserve().unwrap();
    let begun = Instant::now();
    let error = backend(&format!("redis://{}", port.address())).members(&group()).await.unwrap_err();
    let said = error.to_string();
    assert!(begun.elapsed() < REPORTED_WITHIN && error.is_retryable() && *error.kind() == ErrorKind::Unavailable, "{said}");
    assert!(said.contains("cannot reach") && said.contains("discovery.valkey.url") && !said.contains('\n'), "{said}");
    // One that accepts connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let begun = Instant::now();
    let error = backend(&format!("redis://{}", silent.local_addr().unwrap())).members(&group()).await.unwrap_err();
    assert!(begun.elapsed() < REPORTED_WITHIN && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn another_server_behind_the_address_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let begun = Instant::now();
    let error = backend(&format!("redis://{address}")).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["does not answer as Valkey and Redis do", "discovery.valkey.url"]);
    answering.abort();
}

#[tokio::test]
async fn wrong_credentials_are_denied_and_never_shown() {
    let server = Redis::start(RedisOptions::default().valkey().with_password("hush-3f9c")).await.unwrap();
    server.command(&["ACL", "SETUSER", "worker", "on", ">hush-77aa", "~*", "&*", "+@all"]).await.unwrap();
    let config = |username: Option<&str>, password: Option<&str>| ValkeyConfig {
        username: username.map(str::to_owned),
        password: password.map(Into::into),
        ..ValkeyConfig::new(server.address())
    };
    for (username, password, names) in [
        (None, None, &["demands a password", "discovery.valkey.password"][..]),
        (None, Some("wrong-1"), &["does not accept the default user", "discovery.valkey.password"]),
        (Some("worker"), Some("wrong-2"), &["does not accept user \"worker\"", "discovery.valkey.username"]),
    ] {
        let (begun, backend) = (Instant::now(), open(&config(username, password)));
        let error = backend.register(&registration("a", 1)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Denied, begun, names);
        let in_watch = next_error(&mut backend.watch(&group(), common::PACE)).await;
        assert_eq!(in_watch.kind(), error.kind(), "a watch says so too");
        for said in [error.to_string(), in_watch.to_string(), format!("{backend:?}")] {
            assert!(!said.contains("wrong-") && !said.contains("hush"), "{said}");
        }
    }
    for (username, password) in [(None, "hush-3f9c"), (Some("worker"), "hush-77aa")] {
        open(&config(username, Some(password))).register(&lasting("a", 1)).await.unwrap();
    }
}

#[tokio::test]
async fn tls_works_and_each_way_of_not_working_is_named() {
    let authority = Authority::new().unwrap();
    let secure = Redis::start(RedisOptions::default().with_tls(&authority.server().unwrap())).await.unwrap();
    let with_ca = |url: String, ca: &Authority| ValkeyConfig { ca_file: Some(ca.file()), ..ValkeyConfig::new(url) };
    let good = open(&with_ca(secure.address(), &authority));
    good.register(&lasting("a", 1)).await.unwrap();
    let mut watch = good.watch(&group(), common::PACE);
    view_of(&mut watch, &["a"]).await;

    let plain = valkey().await;
    let expired = Redis::start(RedisOptions::default().with_tls(&authority.expired().unwrap())).await.unwrap();
    let other_name = Redis::start(RedisOptions::default().with_tls(&authority.server_named("elsewhere").unwrap())).await.unwrap();
    for (config, names) in [
        (with_ca(secure.address(), &Authority::new().unwrap()), &["issuer that is not trusted", "discovery.valkey.ca_file"][..]),
        (with_ca(expired.address(), &authority), &["has expired"]),
        (with_ca(other_name.address(), &authority), &["is for another name"]),
        (with_ca(plain.address().replace("redis://", "rediss://"), &authority), &["does not speak TLS", "discovery.valkey.url"]),
        (ValkeyConfig::new(secure.address().replace("rediss://", "redis://")), &["speaks TLS only", "rediss://", "discovery.valkey.url"]),
    ] {
        let begun = Instant::now();
        let error = open(&config).members(&group()).await.unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, begun, names);
    }
}

/// A refused one was retried as a lost connection.
#[tokio::test]
async fn a_client_certificate_is_shown_and_the_message_names_one_that_is_refused() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    for options in [RedisOptions::default(), RedisOptions::default().valkey()] {
        let server = Redis::start(options.with_mutual_tls(&authority.server().unwrap())).await.unwrap();
        let with = |identity: Option<&CertIdentity>| ValkeyConfig {
            ca_file: Some(authority.file()),
            cert_file: identity.map(CertIdentity::certificate),
            key_file: identity.map(CertIdentity::key),
            ..ValkeyConfig::new(server.address())
        };
        let worker = open(&with(Some(&authority.client("worker").unwrap())));
        worker.register(&lasting("a", 1)).await.unwrap();
        view_of(&mut worker.watch(&group(), common::PACE), &["a"]).await;
        for refused in [None, Some(other.client("worker").unwrap()), Some(authority.expired().unwrap())] {
            let (begun, error) = refused_for_good(&with(refused.as_ref())).await;
            let names = ["a client certificate that it accepts", "discovery.valkey.cert_file", "discovery.valkey.key_file"];
            assert_message(&error, &ErrorKind::Denied, begun, &names);
            assert!(!error.to_string().contains("ca_file") && !error.to_string().contains("url"), "{error}");
        }
    }
}

/// The client library hides why a server refuses a database.
#[tokio::test]
async fn a_database_that_is_not_there_is_named() {
    for server in [valkey().await, Redis::start(RedisOptions::default()).await.unwrap()] {
        let (begun, absent) = (Instant::now(), open(&ValkeyConfig { database: 99, ..ValkeyConfig::new(server.address()) }));
        let error = absent.register(&registration("a", 1)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, begun, &["no database 99", "out of range", "discovery.valkey.database"]);
        let in_watch = next_error(&mut absent.watch(&group(), common::PACE)).await;
        assert_eq!(in_watch.kind(), error.kind(), "a watch says so too");
    }
    let cluster = Redis::start(RedisOptions::default().valkey().with_setting("cluster-enabled", "yes")).await.unwrap();
    let begun = Instant::now();
    let error = open(&ValkeyConfig { database: 1, ..ValkeyConfig::new(cluster.address()) }).members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["node of a Cluster"]);
}

#[tokio::test]
async fn servers_that_will_not_do_are_refused_by_name() {
    let primary = valkey().await;
    let replica = Redis::start(RedisOptions::default().valkey().replica_of(primary.socket_addr())).await.unwrap();
    let cluster = Redis::start(RedisOptions::default().valkey().with_setting("cluster-enabled", "yes")).await.unwrap();
    let cache = RedisOptions::default().with_setting("maxmemory", "100mb").with_setting("maxmemory-policy", "allkeys-lru");
    let cache = Redis::start(cache).await.unwrap();
    for (server, names) in [
        (&replica, &["is a replica", "discovery.valkey.url", "discovery.valkey.sentinels"][..]),
        (&cluster, &["node of a Cluster", "does not support"]),
        (&cache, &["allkeys-lru", "noeviction"]),
    ] {
        let (begun, backend) = (Instant::now(), backend(&server.address()));
        let error = backend.register(&registration("a", 1)).await.unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, begun, names);
        let error = backend.members(&group()).await.unwrap_err();
        assert_message(&error, &ErrorKind::Misconfigured, begun, names);
    }
}

/// A primary that becomes a replica while clients are connected answers nothing any more: not even what it could read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_becomes_a_replica_is_noticed_on_an_open_connection() {
    for server in [valkey().await, Redis::start(RedisOptions::default()).await.unwrap()] {
        let other = valkey().await;
        let (backend, name) = (backend(&server.address()), ClaimName::new("n").unwrap());
        backend.register(&lasting("a", 1)).await.unwrap();
        let mut watch = backend.watch(&group(), common::PACE);
        view_of(&mut watch, &["a"]).await;
        let address = other.socket_addr();
        server.command(&["REPLICAOF", &address.ip().to_string(), &address.port().to_string()]).await.unwrap();
        let begun = Instant::now();
        for error in [
            backend.members(&group()).await.unwrap_err(),
            backend.renew(&lasting("a", 1).record_id(), Duration::from_secs(9)).await.unwrap_err(),
            backend.note(&group(), &name).await.unwrap_err(),
            next_error(&mut watch).await,
        ] {
            assert_message(&error, &ErrorKind::Misconfigured, begun, &["is a replica"]);
        }
    }
}

#[tokio::test]
async fn keys_of_another_program_are_named() {
    let server = valkey().await;
    server.command(&["SET", &key("members"), "not ours"]).await.unwrap();
    let (begun, backend) = (Instant::now(), backend(&server.address()));
    let error = backend.register(&registration("a", 1)).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["belongs to another program", "discovery.valkey.prefix"]);
    let elsewhere = open(&ValkeyConfig { prefix: "ours".into(), ..ValkeyConfig::new(server.address()) });
    elsewhere.register(&registration("a", 1)).await.unwrap();
}

/// What another version has written fails one read with its name, and ends no membership.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_named() {
    let server = valkey().await;
    let backend = backend(&server.address());
    backend.register(&lasting("a", 1)).await.unwrap();
    server.command(&["HSET", &key("members"), "strange", "9 00 live 00 1 3000000 00 {}"]).await.unwrap();
    let begun = Instant::now();
    let error = backend.members(&group()).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["\"strange\"", "another version"]);
    backend.renew(&lasting("a", 1).record_id(), Duration::from_secs(9)).await.unwrap();
}

#[tokio::test]
async fn a_server_without_memory_is_worth_another_try() {
    let server = valkey().await;
    let backend = backend(&server.address());
    backend.register(&lasting("a", 1)).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let error = backend.register(&lasting("b", 2)).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("no memory left"), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    backend.register(&lasting("b", 2)).await.unwrap();
}

/// Two databases of one server are two places, and hear nothing of each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_are_separate_places() {
    let server = valkey().await;
    let (here, there) = (backend(&server.address()), open(&ValkeyConfig { database: 3, ..ValkeyConfig::new(server.address()) }));
    let mut watches = [here.watch(&group(), common::PACE), there.watch(&group(), common::PACE)];
    here.register(&lasting("here", 1)).await.unwrap();
    there.register(&lasting("there", 2)).await.unwrap();
    view_of(&mut watches[0], &["here"]).await;
    view_of(&mut watches[1], &["there"]).await;
}
