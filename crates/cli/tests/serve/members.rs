//! Requests to one instance or any instance: admission, and the answers of a sidecar, the local worker and a Rust worker, with TLS and
//! without.

use serde_json::json;
use shardwise::requests::{self, Request, encoded};
use shardwise::{GroupName, Incarnation, InstanceId};
use shardwise_testkit::Authority;
use tokio::runtime::Runtime;

use crate::channel::{self, Side, Whom};
use crate::common::{PATIENCE, eventually};
use crate::http2;
use crate::peers::{PEER_TOKEN, answering, asks, by, place_of_peers, service, status_of};
use crate::{Served, TOKEN, http};

/// The member, for callers that say hello by hand.
fn whom(served: &Served) -> Whom {
    let status = status_of(served, &served.id).well("status");
    let incarnation = Incarnation::from_hex(status["incarnation"].as_str().unwrap()).unwrap();
    Whom { group: GroupName::new("workers").unwrap(), instance_id: InstanceId::new(&*served.id).unwrap(), incarnation }
}

#[test]
fn who_acts_has_tokens_and_who_is_no_member_is_not_let_in() {
    let place = place_of_peers();
    let open = Served::start(&place, &[]);
    let tokened = Served::start(&place, &["--token-file", "token"]);
    let closed = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let foreign = Served::start(&place, &["--token-file", "token", "--peer-token-file", "others"]);
    open.settles(4, |_| true);
    let get = |from: &Served, to: &Served| status_of(from, &to.id);
    assert_eq!(get(&tokened, &open).status, 200, "on this machine it may be read without tokens");
    open.post(&format!("any/{}", "status"), "", "").refuses(403, "without an operator's token nobody acts");
    asks(&tokened, "POST", &format!("instances/{}/status", open.id), "").refuses(502, "nor without a peer's");
    for (from, to) in [(&open, &closed), (&foreign, &closed), (&closed, &foreign), (&open, &tokened)] {
        // Each has its own view, and may not see all of them yet.
        let known = || Some(get(from, to)).filter(|answer| answer.status != 404);
        let refusal = eventually("the one is known to the other", PATIENCE, known).refuses(502, "another token or none");
        assert!(refusal["detail"].as_str().unwrap().contains("token"), "{refusal}");
    }

    let same = ["serve", "--listen", "127.0.0.1:0", "--policy", "workers", "--token-file", "token", "--peer-token-file", "token"];
    place.run(&same).fails(2, &["are the same"]);

    let page = format!("Authorization: Bearer {TOKEN}\r\nOrigin: http://{}\r\n", closed.at);
    closed.post(&format!("instances/{}/status", closed.id), &page, "").refuses(403, "from a browser, and not from the page");

    let runtime = Runtime::new().unwrap();
    let asked = |path: &str| {
        runtime.block_on(async {
            let opened = channel::open(&closed.at.to_string(), &whom(&closed), Some(PEER_TOKEN)).await.unwrap();
            let sender = http2::client(opened.plain(Side::Caller)).await;
            http2::ask(&sender, ("GET", path), &[("shardwise-to", "instance")], "").await.unwrap()
        })
    };
    assert_eq!((asked("status").status, asked("a/../status").status), (200, 400), "no path");
    let refused = |to: &Served, whom: &Whom, token| {
        let opened = runtime.block_on(channel::open(&to.at.to_string(), whom, token));
        opened.map(|_| ()).unwrap_err().to_string()
    };
    for token in [Some(TOKEN), Some("peers-of-somebody-else-know-this"), None] {
        assert!(refused(&closed, &whom(&closed), token).contains("unproven"), "the operator's token is none of the peers'");
    }
    assert!(refused(&tokened, &whom(&tokened), None).contains("unproven"), "and it opens nothing where the peers have none");
    let nobody = Whom { instance_id: InstanceId::new("nobody").unwrap(), ..whom(&closed) };
    assert!(refused(&closed, &nobody, Some(PEER_TOKEN)).contains("somebody_else"));

    let direct = |path: &str, token: &str| {
        let head = format!("Host: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nshardwise-peer: 1\r\n\r\n", closed.at);
        http::raw(closed.at, format!("GET {path} HTTP/1.1\r\n{head}").as_bytes())
    };
    let members = direct(&Served::path("members"), PEER_TOKEN).refuses(401, "a peer's token is no operator's");
    assert!(!members.to_string().contains(PEER_TOKEN));
    // Members of earlier versions called each other there.
    let earlier = format!("/v1/peers/workers/{}/{}/status", closed.id, whom(&closed).incarnation);
    direct(&earlier, PEER_TOKEN).refuses(401, "no operator");
    direct(&earlier, TOKEN).refuses(404, "it has gone");
}

#[test]
fn the_worker_beside_answers_what_the_sidecar_does_not() {
    let place = place_of_peers();
    let (beside, arrived) = answering("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok");
    let forward = format!("http://{beside}/hooks");
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let other = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers", "--forward-to", &forward]);
    let own_status = format!("instances/{}/shardwise/status", other.id);
    eventually("it is seen", PATIENCE, || (asks(&one, "GET", &own_status, "").status == 200).then_some(()));
    let answer = asks(&one, "POST", &format!("instances/{}/cache/flush", other.id), "{\"a\":1}");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ok"[..]), "{answer:?}");
    let request = arrived.recv_timeout(PATIENCE).unwrap();
    assert!(request.starts_with("POST /hooks/cache/flush HTTP/1.1\r\n") && request.ends_with("{\"a\":1}"), "{request}");
    assert!(!request.to_lowercase().contains("authorization") && !request.contains("of-the-caller"), "{request}");
    for elsewhere in ["http://10.0.0.7:80", "https://127.0.0.1:1", "127.0.0.1:80", "http://user@127.0.0.1:1"] {
        place.run(&["serve", "--policy", "workers", "--forward-to", elsewhere]).fails(2, &["of this machine"]);
    }
}

#[test]
fn a_rust_worker_without_a_sidecar_answers_by_its_own_handlers() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let tokened = format!("peer_token_file = '{}'\n", place.path("peers").display());
    let [worker, stranger] = [("wörker/1", tokened.as_str()), ("stranger", "")].map(|(id, lines)| {
        let service = service(&runtime, &place, id, lines);
        service
            .on_request("cache/size", |request: Request| async move {
                let asked = String::from_utf8(request.body).unwrap();
                requests::Answer::json(&json!({"size": 7, "asked": asked, "query": request.query})).with_status(202)
            })
            .unwrap();
        runtime.block_on(service.listen_for_requests()).unwrap();
        runtime.block_on(service.register_self()).unwrap();
        service
    });
    // A sidecar with a token asks only members that prove it; one without a token can still be read.
    let open = Served::start(&place, &[]);
    for (from, worker) in [(&one, &worker), (&open, &stranger)] {
        let id = encoded(worker.instance_id().as_str());
        let status = eventually("it is seen", PATIENCE, || Some(status_of(from, &id)).filter(|answer| answer.status == 200));
        assert_eq!(by(&status), id.to_lowercase());
        assert_eq!(status.well("status")["instance_id"], worker.instance_id().as_str());
    }
    let id = encoded(worker.instance_id().as_str());
    let unproven = eventually("it is seen", PATIENCE, || Some(status_of(&one, "stranger")).filter(|answer| answer.status != 404));
    let why = unproven.refuses(502, "it cannot prove itself");
    assert!(why["detail"].as_str().unwrap().contains("has no peer token"), "{why}");
    let answer = asks(&one, "POST", &format!("instances/{id}/cache/size?a=b"), "{\"a\":1}");
    assert_eq!((answer.status, answer.json()), (202, json!({"size": 7, "asked": "{\"a\":1}", "query": "a=b"})));
    let unproven = asks(&one, "POST", "instances/stranger/cache/size", "").refuses(502, "it cannot prove itself");
    assert_eq!(unproven["type"], "urn:shardwise:problem:unreachable-instance", "it has certainly done nothing");
    let nothing = asks(&one, "GET", &format!("instances/{id}/nothing"), "").refuses(404, "no handler");
    assert!(nothing["detail"].as_str().unwrap().contains("cache/size"), "{nothing}");
    runtime.block_on(worker.deregister_self()).unwrap();
    eventually("it has left", PATIENCE, || (status_of(&one, &id).status == 404).then_some(()));
    drop((worker, stranger, runtime));
}

#[test]
fn members_that_speak_tls_are_believed_by_their_certificate() {
    let (place, good, bad) = (place_of_peers(), Authority::new().unwrap(), Authority::new().unwrap());
    let server = good.server().unwrap();
    let [chain, key] = [server.certificate(), server.key()].map(|path| path.display().to_string());
    let tls = ["--tls-cert", &chain, "--tls-key", &key, "--token-file", "token", "--peer-token-file", "peers"];
    let other = Served::start(&place, &tls);
    let asking = |ca: &[&str]| Served::start(&place, &[&["--token-file", "token", "--peer-token-file", "peers"], ca].concat());
    let [good, bad] = [good.file(), bad.file()].map(|path| path.display().to_string());
    let trusting = asking(&["--peer-ca-file", &good]);
    eventually("it is seen", PATIENCE, || (status_of(&trusting, &other.id).status == 200).then_some(()));
    for (ca, why) in [(&[][..], "--peer-ca-file"), (&["--peer-ca-file", &bad], "certificate")] {
        let one = asking(ca);
        let refusal = eventually("it is seen", PATIENCE, || Some(status_of(&one, &other.id)).filter(|answer| answer.status != 404));
        let refusal = refusal.refuses(502, why);
        assert!(refusal["detail"].as_str().unwrap().contains(why), "{refusal}");
    }
    place.run(&["serve", "--policy", "workers", "--peer-ca-file", "token"]).fails(2, &["token", "certificates in PEM"]);
}

/// The address of a pod is not known when its certificate is made.
#[test]
fn members_may_share_a_name_that_is_not_their_address() {
    let (place, authority) = (place_of_peers(), Authority::new().unwrap());
    let shared = authority.server_named("members.example").unwrap();
    let [chain, key, ca] = [shared.certificate(), shared.key(), authority.file()].map(|path| path.display().to_string());
    let tokens = ["--token-file", "token", "--peer-token-file", "peers"];
    let other = Served::start(&place, &[&tokens[..], &["--tls-cert", &chain, "--tls-key", &key]].concat());
    let asking = |more: &[&str]| Served::start(&place, &[&["--token-file", "token", "--peer-ca-file", &ca], more].concat());
    let knowing = asking(&["--peer-token-file", "peers", "--peer-name", "members.example"]);
    eventually("it is seen", PATIENCE, || (status_of(&knowing, &other.id).status == 200).then_some(()));
    assert_eq!(asks(&knowing, "POST", &format!("instances/{}/status", other.id), "{}").status, 200);
    for (more, why) in [
        (&["--peer-token-file", "peers"][..], "certificate"),
        (&["--peer-token-file", "peers", "--peer-name", "others.example"], "certificate"),
        (&["--peer-name", "members.example"], "without a peer token"),
    ] {
        let one = asking(more);
        let refusal = eventually("it is seen", PATIENCE, || Some(status_of(&one, &other.id)).filter(|answer| answer.status != 404));
        let refusal = refusal.refuses(502, why);
        assert!(refusal["detail"].as_str().unwrap().contains(why), "{refusal}");
    }
    let serve = ["serve", "--policy", "workers", "--peer-name"];
    place.run(&[&serve[..], &["members.example"]].concat()).fails(2, &["--peer-ca-file"]);
    place.run(&[&serve[..], &["no name", "--peer-ca-file", &ca]].concat()).fails(2, &["--peer-name no name"]);
}
