use shardwise_core::{GroupName, Incarnation, InstanceId};

use super::*;
use crate::membership::proof::Channel;

const SECRET: &[u8] = b"members-know-this-one";
const POST: RequestParts<'static> = RequestParts {
    method: "POST",
    target: "/v1/peers/workers/worker-1/0000000000000007/cache/flush?what=all",
    content_type: Some(b"application/json"),
    traceparent: None,
    digest: "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862",
    to: Some(b"any"),
};
const OK: AnswerParts<'static> = AnswerParts { by: "1", status: 200, content_type: Some(b"text/plain"), body: b"ok" };

fn of<T>(incarnation: u64, with: impl FnOnce(&Recipient<'_>) -> T) -> T {
    let (group, id) = (GroupName::new("workers").unwrap(), InstanceId::new("worker-1").unwrap());
    with(&Recipient { channel: Channel::Requests, group: &group, instance_id: &id, incarnation: Incarnation::new(incarnation) })
}

/// Both ends of a connection, greeted.
fn connection() -> (CallerEnd, RecipientEnd) {
    let (answering, nonce) = (RecipientEnd::default(), Nonce::random());
    let asking = of(7, |recipient| {
        let Greeting { nonce: own, proof } = answering.greeted(SECRET, recipient, &nonce.to_string()).unwrap();
        CallerEnd::begun(SECRET, recipient, &nonce, &own, &proof).unwrap()
    });
    (asking, answering)
}

/// The vectors of `docs/reference/protocol.md`: an older recipient, whose proofs do not cover the addressee, and one whose proofs do.
#[test]
fn the_bytes_are_those_of_the_page() {
    let [callers, own]: [Nonce; 2] = ["11", "22"].map(|byte| byte.repeat(32).parse().unwrap());
    let welcome = "7bbaf0deb9d4ae922c37e27d450b66245978a289e0e9e082657df235b1f682bd";
    let mut asking = of(7, |recipient| CallerEnd::begun(SECRET, recipient, &callers, &own.to_string(), welcome)).unwrap();
    assert_eq!(asking.proof(&POST), "ca7880856ac1a87c77136f71868703c886a499d4b6135d02733b00912d023f84");
    assert!(asking.is_answer(Some("11567d1b59e363c0a264ec2bd7cf515fecb98e48594a4619057e54a9b477b17a"), &OK));

    let own = "22".repeat(24) + "636f76657273746f";
    let welcome = "46764ddb677c5130fb877c7c2ee1061a04f6fd9de2099638df636b54f056dde0";
    let mut asking = of(7, |recipient| CallerEnd::begun(SECRET, recipient, &callers, &own, welcome)).unwrap();
    assert_eq!(asking.proof(&POST), "3bd45cc36e1a48b24cb13891c4d6d8bdd7649662b7fed0e33023abc44a8cd939");
}

/// Each side may be of the older version, which knows no addressee and proves requests without it.
#[test]
fn versions_may_be_mixed_and_neither_is_made_of_the_other() {
    let older = RequestParts { to: None, ..POST };
    let (mut asking, answering) = connection();
    assert!(answering.proven(&older, &asking.proof(&older)).is_some(), "an older caller");
    assert!(answering.proven(&POST, &asking.proof(&older)).is_none(), "to whose request the header was added on the way");

    let (callers, own) = (Nonce::random(), Nonce::random());
    let (session, mut asking) = of(7, |recipient| {
        let (session, proof) = ProofSession::welcoming(SECRET, recipient, &callers, &own);
        let asking = CallerEnd::begun(SECRET, recipient, &callers, &own.to_string(), &proof.to_string()).unwrap();
        (session, asking)
    });
    let shown = asking.proof(&POST).parse().unwrap();
    assert!(older.with(|fields| session.proves(&shown, ProofKind::Question, 0, fields)), "an older recipient");
}

#[test]
fn a_request_counts_once_and_on_its_own_connection_alone() {
    let (mut asking, answering) = connection();
    let first = asking.proof(&POST);
    let proven = answering.proven(&POST, &first).unwrap();
    assert!(proven.has_body(b"{\"a\":1}") && !proven.has_body(b"{\"a\":2}") && !proven.has_body(b""));
    let answer = proven.answer(&OK);
    assert!(asking.is_answer(Some(&answer), &OK));
    let second = asking.proof(&POST);
    assert!(!asking.is_answer(Some(&answer), &OK), "the answer to the first is none to the second");
    assert!(answering.proven(&POST, &second).is_some());
    assert!(answering.proven(&POST, &second).is_none(), "a second time");
    assert!(answering.proven(&POST, &asking.proof(&POST)).is_none(), "after a wrong one nothing counts");

    let (mut one, (_, other)) = (connection().0, connection());
    assert!(other.proven(&POST, &one.proof(&POST)).is_none(), "on another connection");
    assert!(RecipientEnd::default().proven(&POST, &first).is_none(), "before a greeting");
}

#[test]
fn what_was_changed_on_the_way_is_refused() {
    let changed = [
        RequestParts { method: "GET", ..POST },
        RequestParts { target: "/v1/peers/workers/worker-1/0000000000000007/cache/flush?what=one", ..POST },
        RequestParts { content_type: None, ..POST },
        RequestParts { content_type: Some(b""), ..POST },
        RequestParts { traceparent: Some(b""), ..POST },
        RequestParts { to: Some(b"instance"), ..POST },
        RequestParts { to: None, ..POST },
        RequestParts { digest: "115abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862", ..POST },
    ];
    for changed in changed {
        let (mut asking, answering) = connection();
        assert!(answering.proven(&changed, &asking.proof(&POST)).is_none(), "{changed:?}");
    }
    let (mut asking, answering) = connection();
    let answer = answering.proven(&POST, &asking.proof(&POST)).unwrap().answer(&OK);
    for changed in [
        AnswerParts { by: "refused", ..OK },
        AnswerParts { status: 204, ..OK },
        AnswerParts { content_type: Some(b"text/html"), ..OK },
        AnswerParts { body: b"no", ..OK },
    ] {
        assert!(!asking.is_answer(Some(&answer), &changed), "{changed:?}");
    }
    assert!(asking.is_answer(Some(&answer), &OK) && !asking.is_answer(None, &OK) && !asking.is_answer(Some("x"), &OK));
}

#[test]
fn who_does_not_know_the_secret_or_is_another_member_is_not_believed() {
    let nonce = Nonce::random();
    let greeting = |secret: &[u8], incarnation| {
        let greeted = |recipient: &Recipient<'_>| RecipientEnd::default().greeted(secret, recipient, &nonce.to_string()).unwrap();
        of(incarnation, greeted)
    };
    let believed = |shown: &Greeting| of(7, |asked| CallerEnd::begun(SECRET, asked, &nonce, &shown.nonce, &shown.proof)).is_some();
    assert!(believed(&greeting(SECRET, 7)));
    assert!(!believed(&greeting(b"members-know-this-onf", 7)), "another secret");
    assert!(!believed(&greeting(SECRET, 8)), "another life, such as one that a process passes the greeting on to");
    let own = Nonce::random().to_string();
    for proof in ["", "none", &own, &nonce.to_string()] {
        assert!(!believed(&Greeting { nonce: own.clone(), proof: (*proof).to_owned() }), "{proof}");
    }
    assert!(of(7, |recipient| RecipientEnd::default().greeted(SECRET, recipient, "no nonce")).is_none());
}
