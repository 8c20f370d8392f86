//! What can be wrong with the settings for Consul.

use shardwise_testkit::{Authority, Consul, ConsulOptions};

use super::{Case, Mistake, REFUSED, Table, UNAVAILABLE, USAGE, WRONG, nobody, silence};
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
    let (server, expired) = (authority.server().unwrap(), authority.expired().unwrap());
    let named = authority.server_named("elsewhere.example").unwrap();
    let with_tls = |identity| ConsulOptions::default().with_tls(identity);
    let (plain, secure, expired, named) = tokio::try_join!(
        Consul::single(),
        Consul::start(with_tls(&server).with_acl()),
        Consul::start(with_tls(&expired)),
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
        // The watch needs less of it and may be the first to say so.
        (format!("{NODE} {KEY}"), " for \"workers\""),
        (format!("{NODE} {KEY} service \"workers\" {{ policy = \"read\" }}"), "service:write for \"workers\""),
        (format!("{SERVICE} {KEY}"), "node:read"),
        (format!("{SERVICE} {NODE}"), "key:write"),
    ] {
        let token = secure.token(&rules).await.unwrap().secret;
        lacking.push(mistake(&secure.address(), &format!("{ca}\ntoken = \"{token}\""), REFUSED, &["discovery.consul.token", missing]));
    }
    let mistakes = vec![
        mistake(&format!("http://{}", nobody()), &wrong, UNAVAILABLE, &["discovery.consul.address", "refused"]),
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
    let servers = [plain, secure, expired, named, lonely, agent];
    Case { _servers: Box::new((servers, silent, [authority, other])), mistakes, right, secret }
}
