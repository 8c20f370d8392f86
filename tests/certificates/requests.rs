//! Requests: who is let in, who is believed, and what binds a proof to its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde_json::json;
use shardwise::discovery::tls::{TlsFile, certificates, private_key, provider, roots};
use shardwise::requests::channel::proof::ProofKind;
use shardwise::requests::{ADDRESS_KEY, MemberEndpoint, Request, Undelivered};
use shardwise::settings::PolicySettings;
use shardwise::{ShardingFactory, ShardingService};
use shardwise_testkit::{Authority, CertIdentity};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::asking::{TOKEN, brings, counts, endpoint, post, with_token, worker, worker_with};
use crate::channel::{LONG, Side, Whom, challenged, connect, frame, receive, rest};
use crate::common::{World, eventually, policy};
use crate::http2::{ask, client};

/// What a worker has: whom it trusts, its own certificate, a token, and the name in all certificates.
#[derive(Clone, Copy, Default)]
struct Has<'a> {
    ca: Option<&'a Authority>,
    own: Option<&'a CertIdentity>,
    token: Option<&'a str>,
    name: Option<&'a str>,
}

fn certified(world: &World, id: &str, has: Has<'_>) -> ShardingService {
    let mut peers = with_token(has.token);
    peers.certificates.ca_file = has.ca.map(Authority::file);
    peers.certificates.cert_file = has.own.map(CertIdentity::certificate);
    peers.certificates.key_file = has.own.map(CertIdentity::key);
    peers.certificates.name = has.name.map(str::to_owned);
    worker_with(world, id, peers)
}

fn secured(service: &ShardingService, at: SocketAddr) -> MemberEndpoint {
    MemberEndpoint { address: format!("tls://{at}"), ..endpoint(service, at) }
}

/// A worker with a handler that counts, and its endpoint.
async fn listening(world: &World, id: &str, has: Has<'_>) -> (ShardingService, Arc<AtomicUsize>, MemberEndpoint) {
    let service = certified(world, id, has);
    let done = counts(&service, "act");
    let at = service.listen_for_requests().await.unwrap();
    let there = secured(&service, at);
    (service, done, there)
}

/// The outcome of an action, which must be certain.
async fn refused(by: &ShardingService, there: &MemberEndpoint) -> Undelivered {
    let failed = brings(by, there, &post("act")).await.unwrap_err();
    assert!(!failed.may_have_been_handled(), "{failed:?}");
    failed
}

#[tokio::test]
async fn members_with_certificates_of_one_authority_need_no_token_and_others_are_kept_out() {
    let world = World::new();
    let (ours, theirs) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (own, foreign) = (ours.server().unwrap(), theirs.server().unwrap());
    let has = Has { ca: Some(&ours), own: Some(&own), ..Has::default() };
    let (one, done, there) = listening(&world, "one", has).await;
    let two = certified(&world, "two", has);
    one.register_self().await.unwrap();
    two.register_self().await.unwrap();
    let shown = || two.members().member(one.instance_id())?.metadata.get(ADDRESS_KEY).cloned();
    eventually("its record says so", || shown().as_ref() == Some(&there.address)).await;
    assert_eq!(brings(&two, &there, &post("act")).await.unwrap().body, b"done");
    assert_eq!(done.load(Ordering::Relaxed), 1);

    // Who trusts another authority does not believe the member, and who has a certificate of another one is not let in.
    let strange = certified(&world, "strange", Has { ca: Some(&theirs), ..has });
    assert!(matches!(refused(&strange, &there).await, Undelivered::Unproven(_)));
    for (id, shows) in [("foreign", Some(&foreign)), ("nameless", None)] {
        let stranger = certified(&world, id, Has { ca: Some(&ours), own: shows, ..Has::default() });
        // The refusal may get lost when the connection is closed; it says so sooner or later.
        let begun = Instant::now();
        loop {
            match refused(&stranger, &there).await {
                Undelivered::Barred(why) => {
                    assert!(why.contains("does not take the certificate"), "{id}: {why}");
                    break;
                }
                other => assert!(begun.elapsed() < LONG, "{id}: {other:?}"),
            }
        }
    }
    // What is not TLS at all.
    let mut plain = connect(there.address.strip_prefix("tls://").unwrap()).await;
    plain.write_all(&frame(&Whom::of(&one).hello())).await.unwrap();
    assert!(!String::from_utf8_lossy(&rest(&mut plain).await).contains("challenge"));
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_token_counts_besides_certificates() {
    let world = World::new();
    let authority = Authority::new().unwrap();
    let own = authority.server().unwrap();
    let has = Has { ca: Some(&authority), own: Some(&own), token: Some(TOKEN), name: None };
    let (_one, done, there) = listening(&world, "one", has).await;
    assert_eq!(brings(&certified(&world, "two", has), &there, &post("act")).await.unwrap().body, b"done");
    for (token, says) in [(Some("another-token-than-that"), "does not prove"), (None, "this process has none")] {
        match refused(&certified(&world, "three", Has { token, ..has }), &there).await {
            Undelivered::Unproven(why) => assert!(why.contains(says), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(done.load(Ordering::Relaxed), 1);
    // TLS of one side alone, and the token for both.
    let (_four, _, there) = listening(&world, "four", Has { ca: None, ..has }).await;
    assert_eq!(brings(&certified(&world, "five", Has { own: None, ..has }), &there, &post("act")).await.unwrap().body, b"done");
}

#[tokio::test]
async fn a_certificate_of_another_host_or_of_the_past_is_none_and_a_shared_name_needs_a_token() {
    let world = World::new();
    let authority = Authority::new().unwrap();
    let (own, expired) = (authority.server().unwrap(), authority.expired().unwrap());
    let named = authority.server_named("members.example").unwrap();
    let has = Has { ca: Some(&authority), own: Some(&own), token: Some(TOKEN), name: None };
    let two = certified(&world, "two", has);
    for (id, own) in [("named", &named), ("expired", &expired)] {
        let (_service, done, there) = listening(&world, id, Has { own: Some(own), ..has }).await;
        match refused(&two, &there).await {
            Undelivered::Unproven(why) => assert!(why.contains("certificate") && why.contains("nothing was sent"), "{id}: {why}"),
            other => panic!("{id}: {other:?}"),
        }
        assert_eq!(done.load(Ordering::Relaxed), 0, "{id}");
    }
    let shared = Has { own: Some(&named), name: Some("members.example"), ..has };
    let (_one, done, there) = listening(&world, "one", shared).await;
    assert_eq!(brings(&certified(&world, "three", shared), &there, &post("act")).await.unwrap().body, b"done");
    let other_name = certified(&world, "four", Has { name: Some("others.example"), ..shared });
    assert!(matches!(refused(&other_name, &there).await, Undelivered::Unproven(_)));
    assert_eq!(done.load(Ordering::Relaxed), 1);
    let mut peers = with_token(None);
    (peers.certificates.ca_file, peers.certificates.name) = (Some(authority.file()), Some("members.example".into()));
    let mut settings = PolicySettings::new(policy());
    (settings.discovery.backend, settings.peers) = ("test".into(), peers);
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(world.store.link()));
    let error = builder.build().unwrap().create("workers").unwrap_err().to_string();
    assert!(error.contains("write peer_token_file too"), "{error}");
}

/// Which addresses a member with certificates, or without, calls at all.
#[tokio::test]
async fn an_address_with_or_without_tls_is_called_only_where_the_member_there_is_proven() {
    let world = World::new();
    let authority = Authority::new().unwrap();
    let own = authority.server().unwrap();
    let mutual = Has { ca: Some(&authority), own: Some(&own), ..Has::default() };
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = port.local_addr().unwrap();
    let two = certified(&world, "two", mutual);
    for (by, there, says) in [
        (&two, endpoint(&two, at), "without a peer token nothing proves which member answers"),
        (&worker(&world, "three", Some(TOKEN)), secured(&two, at), "nothing says whose certificates are right"),
    ] {
        match brings(by, &there, &Request::get("status")).await {
            Err(Undelivered::Barred(why)) => assert!(why.contains(says), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let called = tokio::time::timeout(Duration::from_millis(200), port.accept()).await;
    assert!(called.is_err(), "nothing has called");
}

/// A connection with TLS to that endpoint, and what binds proofs to it, as the page says.
async fn tls(
    there: &MemberEndpoint,
    authority: &Authority,
    own: &CertIdentity,
    protocol: &[u8],
) -> std::io::Result<(TlsStream<TcpStream>, [u8; 32])> {
    let roots = roots(&authority.file()).unwrap();
    let chain = certificates(TlsFile::Certificate, &own.certificate()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(Arc::new(roots));
    let mut config = builder.with_client_auth_cert(chain, private_key(&own.key()).unwrap()).unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = connect(there.address.strip_prefix("tls://").unwrap()).await;
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await?;
    let binding = stream.get_ref().1.export_keying_material([0; 32], b"EXPERIMENTAL shardwise channel", None).unwrap();
    Ok((stream, binding))
}

/// Who sits between two members, with a certificate of their authority, has two connections: what is proven on one is not on the other.
#[tokio::test]
async fn a_proof_is_bound_to_its_connection() {
    let world = World::new();
    let authority = Authority::new().unwrap();
    let own = authority.server().unwrap();
    let has = Has { ca: Some(&authority), own: Some(&own), token: Some(TOKEN), name: None };
    let (one, done, there) = listening(&world, "one", has).await;
    let whom = Whom::of(&one);
    let ((first, binding), (second, other_binding)) =
        (tls(&there, &authority, &own, b"shardwise").await.unwrap(), tls(&there, &authority, &own, b"shardwise").await.unwrap());
    assert_ne!(binding, other_binding);
    let opened = challenged(first, &whom, Some(TOKEN), &binding).await.unwrap().confirmed().await.unwrap();
    assert!(opened.session.is_none(), "with TLS there are no records");
    let client = client(opened.plain(Side::Caller)).await;
    assert_eq!(ask(&client, ("POST", "act"), &[("shardwise-to", "instance")], "x").await.unwrap().body, "done");

    let mut relayed = challenged(second, &whom, Some(TOKEN), &binding).await.unwrap();
    assert!(relayed.session.is_none(), "the member's proof is for the other connection");
    let session = whom.session(TOKEN, &relayed.hello["nonce"], &relayed.challenge["nonce"]);
    let proof = session.proof(ProofKind::Confirmation, 0, &[&binding]).to_string();
    relayed.stream.write_all(&frame(&json!({"proof": proof}))).await.unwrap();
    assert_eq!(receive(&mut relayed.stream).await.unwrap(), json!("unproven"));

    let (third, _) = tls(&there, &authority, &own, b"shardwise").await.unwrap();
    let unbound = challenged(third, &whom, Some(TOKEN), &[]).await.unwrap();
    assert!(unbound.session.is_none(), "nor is it one without TLS");
    assert!(tls(&there, &authority, &own, b"h2").await.is_err(), "another protocol is not spoken there");
    assert_eq!(done.load(Ordering::Relaxed), 1);
}
