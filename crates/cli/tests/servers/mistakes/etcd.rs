//! Mistakes in the settings for etcd.

use shardwise_testkit::{Authority, Etcd, EtcdOptions, KeyAccess, Port};

use super::{Case, Mistake, REFUSED, Table, UNAVAILABLE, USAGE, WRONG, damaged, identified, silence};
use crate::meeting::Kind;

const SECRET: &str = "3f9c1b7e-right-secret";

fn table(address: &str, more: &str) -> Table {
    Table { kind: Kind::Etcd, address: address.into(), more: more.into() }
}

fn mistake(address: &str, more: &str, code: i32, parts: &[&str]) -> Mistake {
    Mistake { table: table(address, more), code, parts: parts.iter().map(|&part| part.into()).collect() }
}

fn user(name: &str, password: &str) -> String {
    format!("username = \"{name}\"\npassword = \"{password}\"")
}

pub(super) async fn case() -> Case {
    let authority = Authority::new().unwrap();
    let (server, outdated) = (authority.server().unwrap(), authority.expired().unwrap());
    let named = authority.server_named("elsewhere.example").unwrap();
    let with_tls = |identity| EtcdOptions::default().with_tls(identity);
    let (plain, guarded, secure, expired, named) = tokio::try_join!(
        Etcd::single(),
        Etcd::start(with_tls(&server).with_client_certificates()),
        Etcd::start(with_tls(&server).with_auth()),
        Etcd::start(with_tls(&outdated)),
        Etcd::start(with_tls(&named)),
    )
    .unwrap();
    secure.add_user("worker", SECRET, &[(KeyAccess::ReadWrite, "/shardwise/")]).await.unwrap();
    secure.add_user("writer", SECRET, &[(KeyAccess::Write, "/shardwise/")]).await.unwrap();
    secure.add_user("reader", SECRET, &[(KeyAccess::Read, "/shardwise/")]).await.unwrap();
    let learner = plain.add_learner().await.unwrap();
    let silent = silence(plain.socket_addr()).await;
    let others = [silence(plain.socket_addr()).await, silence(plain.socket_addr()).await, silence(plain.socket_addr()).await];
    let all_silent: Vec<_> = [&silent].into_iter().chain(&others).map(|silent| format!("http://{}", silent.address())).collect();

    let ca = format!("ca_file = \"{}\"", authority.file().display());
    let wrong = user("worker", WRONG);
    let with = |user: &str| format!("{ca}\n{user}");
    let other = Authority::new().unwrap();
    let stranger = format!("ca_file = \"{}\"\n{wrong}", other.file().display());
    let (damaged, nobody) = (damaged(&authority), Port::reserve().unwrap());
    let pair = ["discovery.etcd.cert_file", "discovery.etcd.key_file", "client's certificate"];
    let key = damaged.key().display().to_string();
    let mistakes = vec![
        mistake(&guarded.address(), &ca, REFUSED, &pair),
        mistake(&guarded.address(), &with(&identified(&outdated)), REFUSED, &pair),
        mistake(&guarded.address(), &with(&identified(&damaged)), USAGE, &["discovery.etcd.key_file", &key, "line breaks"]),
        mistake(&format!("http://{}", nobody.address()), &wrong, UNAVAILABLE, &["discovery.etcd.endpoints", "refused"]),
        mistake("http://no-such-host.invalid:2379", &wrong, UNAVAILABLE, &["discovery.etcd.endpoints", "no-such-host.invalid"]),
        mistake(&format!("http://{}", silent.address()), &wrong, UNAVAILABLE, &["discovery.etcd.endpoints", &silent.address().to_string()]),
        // The message names the endpoint that was asked last.
        mistake(&all_silent.join(","), &wrong, UNAVAILABLE, &["discovery.etcd.endpoints", "gave no answer within"]),
        mistake(&learner.address(), "", REFUSED, &["discovery.etcd.endpoints", "learner"]),
        mistake(
            &plain.address().replace("http:", "https:"),
            &with(&wrong),
            REFUSED,
            &["discovery.etcd.endpoints", "http://", "does not speak TLS"],
        ),
        mistake(&secure.address().replace("https:", "http:"), &wrong, REFUSED, &["discovery.etcd.endpoints", "https://", "TLS only"]),
        mistake(&secure.address(), &with(&wrong), REFUSED, &["discovery.etcd.username", "discovery.etcd.password", "\"worker\""]),
        mistake(
            &secure.address(),
            &with(&user("nobody", WRONG)),
            REFUSED,
            &["discovery.etcd.username", "discovery.etcd.password", "\"nobody\""],
        ),
        mistake(&secure.address(), &ca, REFUSED, &["set discovery.etcd.username and discovery.etcd.password"]),
        mistake(
            &secure.address(),
            &with(&user("reader", SECRET)),
            REFUSED,
            &["discovery.etcd.username", "\"reader\"", "grant", "/shardwise"],
        ),
        mistake(
            &secure.address(),
            &with(&user("writer", SECRET)),
            REFUSED,
            &["discovery.etcd.username", "\"writer\"", "grant", "/shardwise"],
        ),
        mistake(&plain.address(), &wrong, REFUSED, &["discovery.etcd.username", "discovery.etcd.password", "no authentication"]),
        mistake(
            &expired.address(),
            &with(&wrong),
            REFUSED,
            &["certificate", "discovery.etcd.endpoints", &expired.address(), "has expired"],
        ),
        mistake(&named.address(), &with(&wrong), REFUSED, &["certificate", "discovery.etcd.endpoints", "another name"]),
        mistake(&secure.address(), &stranger, REFUSED, &["certificate", "discovery.etcd.ca_file"]),
        mistake("ftp://127.0.0.1:2379", &wrong, USAGE, &["discovery.etcd.endpoints", "http://"]),
        mistake("https://127.0.0.1:2379", "ca_file = \"/nowhere/ca.pem\"", USAGE, &["discovery.etcd.ca_file", "/nowhere/ca.pem"]),
    ];
    let right = table(&secure.address(), &with(&user("worker", SECRET)));
    let servers = [plain, guarded, secure, expired, named, learner];
    Case { _servers: Box::new((servers, nobody, silent, others, [authority, other])), mistakes, right, secret: SECRET }
}
