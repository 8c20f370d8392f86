//! Mistakes in the settings for Consul.

use shardwise_testkit::{Authority, Consul, ConsulOptions, Port};

use super::{Case, Mistake, REFUSED, Table, UNAVAILABLE, USAGE, WRONG, damaged, identified, silence};
use crate::meeting::Kind;

/// The rights of docs.md, one by one.
const SERVICE: &str = "service \"workers\" { policy = \"write\" }";
const NODE: &str = "node_prefix \"\" { policy = \"read\" }";
const KEY: &str = "key_prefix \"shardwise/\" { policy = \"write\" }";

fn table(address: &str, more: &str) -> Table {
    Table { kind: Kind::Consul, address: address.into(), more: more.into() }
}

fn mistake(address: &str, more: &str, code: i32, parts: &[&str]) -> Mistake {
    Mistake { table: table(address, more), code, parts: parts.iter().map(|&part| part.into()).collect() }
}

pub(super) async fn case() -> Case {
    let authority = Authority::new().unwrap();
    let (server, outdated) = (authority.server().unwrap(), authority.expired().unwrap());
    let named = authority.server_named("elsewhere.example").unwrap();
    let with_tls = |identity| ConsulOptions::default().with_tls(identity);
    let (plain, guarded, secure, expired, named) = tokio::try_join!(
        Consul::single(),
        Consul::start(with_tls(&server).with_client_certificates()),
        Consul::start(with_tls(&server).with_acl()),
        Consul::start(with_tls(&outdated)),
        Consul::start(with_tls(&named)),
    )
    .unwrap();
    let lonely = Consul::single().await.unwrap();
    let agent = lonely.agent("lonely").await.unwrap();
    lonely.kill().unwrap();
    let silent = silence(plain.socket_addr()).await;

    let ca = format!("ca_file = \"{}\"", authority.file().display());
    let wrong = format!("token = \"{WRONG}\"");
    let with_wrong = format!("{ca}\n{wrong}");
    let other = Authority::new().unwrap();
    let stranger = format!("ca_file = \"{}\"\n{wrong}", other.file().display());
    let secret = secure.management_token();
    let mut lacking = Vec::new();
    for (rules, missing) in [
        // The watch needs only part of these rights and may fail first.
        (format!("{NODE} {KEY}"), " for \"workers\""),
        (format!("{NODE} {KEY} service \"workers\" {{ policy = \"read\" }}"), "service:write for \"workers\""),
        (format!("{SERVICE} {KEY}"), "node:read"),
        (format!("{SERVICE} {KEY} node \"{}\" {{ policy = \"read\" }}", secure.node()), "node:read"),
        (format!("{SERVICE} {NODE}"), "key:write"),
    ] {
        let token = secure.token(&rules).await.unwrap().secret;
        lacking.push(mistake(&secure.address(), &format!("{ca}\ntoken = \"{token}\""), REFUSED, &["discovery.consul.token", missing]));
    }
    let (damaged, nobody) = (damaged(&authority), Port::reserve().unwrap());
    let pair = ["discovery.consul.cert_file", "discovery.consul.key_file", "client's certificate"];
    let key = damaged.key().display().to_string();
    let with = |identity| format!("{ca}\n{}", identified(identity));
    let mistakes = vec![
        mistake(&guarded.address(), &ca, REFUSED, &pair),
        mistake(&guarded.address(), &with(&outdated), REFUSED, &pair),
        mistake(&guarded.address(), &with(&damaged), USAGE, &["discovery.consul.key_file", &key, "a private key in PEM"]),
        mistake(&plain.address(), "verify = false", USAGE, &["discovery.consul.verify", "discovery.consul.ca_file"]),
        mistake(&format!("http://{}", nobody.address()), &wrong, UNAVAILABLE, &["discovery.consul.address", "refused"]),
        mistake("http://no-such-host.invalid:8500", &wrong, UNAVAILABLE, &["discovery.consul.address", "no-such-host.invalid"]),
        mistake(
            &format!("http://{}", silent.address()),
            &wrong,
            UNAVAILABLE,
            &["discovery.consul.address", "no answer from", &silent.address().to_string()],
        ),
        mistake(&agent.address(), &wrong, UNAVAILABLE, &["discovery.consul.address", &agent.address()]),
        mistake(&plain.address().replace("http:", "https:"), &with_wrong, REFUSED, &["discovery.consul.address", "http://", "plain HTTP"]),
        mistake(&secure.address().replace("https:", "http:"), &wrong, REFUSED, &["discovery.consul.address", "https://", "HTTPS only"]),
        mistake(&secure.address(), &with_wrong, REFUSED, &["discovery.consul.token", "does not know the token"]),
        mistake(&secure.address(), &ca, REFUSED, &["discovery.consul.token", "not set"]),
        mistake(&plain.address(), &format!("datacenter = \"dc9\"\n{wrong}"), REFUSED, &["discovery.consul.datacenter", "dc9"]),
        mistake(&expired.address(), &with_wrong, REFUSED, &["certificate", "discovery.consul.address", &expired.address(), "has expired"]),
        mistake(&named.address(), &with_wrong, REFUSED, &["certificate", "discovery.consul.address", "another name"]),
        mistake(&secure.address(), &stranger, REFUSED, &["certificate", "discovery.consul.ca_file"]),
        mistake("ftp://127.0.0.1:8500", &wrong, USAGE, &["discovery.consul.address", "http://"]),
        mistake("https://127.0.0.1:8500", "ca_file = \"/nowhere/ca.pem\"", USAGE, &["discovery.consul.ca_file", "/nowhere/ca.pem"]),
    ];
    let mistakes = mistakes.into_iter().chain(lacking).collect();
    let right = table(&secure.address(), &format!("{ca}\ntoken = \"{secret}\""));
    let servers = [plain, guarded, secure, expired, named, lonely, agent];
    Case { _servers: Box::new((servers, nobody, silent, [authority, other])), mistakes, right, secret }
}
