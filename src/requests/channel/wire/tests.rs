use futures::FutureExt as _;
use http_body_util::BodyExt as _;

use super::*;

async fn arrived(sent: http::Request<Full<Bytes>>) -> Result<Request, &'static str> {
    let (head, body) = sent.into_parts();
    let head = ArrivedHead::parse(&head)?;
    head.with_body(body.collect().await.unwrap().to_bytes().into())
}

#[tokio::test]
async fn a_request_arrives_as_it_was_sent() {
    let mut asked = Request::post("cache/flush", "text/plain", "all");
    (asked.query, asked.idempotency_key, asked.tell) = (Some("a=b&c=%20".into()), Some("7".into()), true);
    let mut to_owner = Request { to: Addressee::Owner, key: Some(OwnedKey::of("größe")), ..asked.clone() };
    let to_holder = Request { to: Addressee::Holder, name: Some(ClaimName::new("singleton/x y").unwrap()), ..Request::get("status") };
    let to_session = Request { to: Addressee::Session, session: Some("abc-_".into()), ..Request::get("status") };
    for request in [&asked, &to_owner, &to_holder, &to_session] {
        assert_eq!(arrived(super::request(request, Duration::from_secs(3)).unwrap()).await.as_ref(), Ok(request));
    }
    to_owner.key = Some(OwnedKey::of(&-7_i64));
    assert_eq!(arrived(super::request(&to_owner, Duration::ZERO).unwrap()).await.as_ref(), Ok(&to_owner), "an integer stays one");
    let longest = Request { key: Some(OwnedKey::of(&vec![1_u8; KEY_BYTES_MAX])), body: vec![2; BODY_BYTES_MAX], ..to_owner };
    let (head, _) = super::request(&longest, Duration::ZERO).unwrap().into_parts();
    assert_eq!(ArrivedHead::parse(&head).unwrap().bytes_max(), KEY_BYTES_MAX + BODY_BYTES_MAX);
    let (head, _) = super::request(&asked, Duration::ZERO).unwrap().into_parts();
    assert_eq!(ArrivedHead::parse(&head).unwrap().bytes_max(), BODY_BYTES_MAX, "no key, no room for one");
    assert!(arrived(super::request(&longest, Duration::ZERO).unwrap()).await.as_ref() == Ok(&longest));
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let sent = || super::request(&Request::post("a/b", "text/plain", "c"), Duration::from_secs(1)).unwrap();
    let with = |headers: &[(&HeaderName, &'static str)]| {
        let mut sent = sent();
        for (name, value) in headers {
            sent.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        sent
    };
    let of_owner = |bytes| with(&[(&TO, "owner"), (&KEY_BYTES, bytes)]);
    for (odd, why) in [
        (with(&[(&TO, "everybody")]), "unknown shardwise-to"),
        (with(&[(&TO, "owner")]), "does not say for which key"),
        (with(&[(&TO, "holder")]), "does not say for which key"),
        (with(&[(&TO, "session")]), "does not say for which key"),
        (with(&[(&TO, "holder"), (&NAME, "%FF")]), "not text"),
        (of_owner("65537"), "too long"),
        (of_owner("-1"), "too long"),
        (of_owner("1"), "unknown kind"),
    ] {
        let refused = arrived(odd).await.unwrap_err();
        assert!(refused.contains(why), "{refused} instead of {why}");
    }
    let mut short = of_owner("2");
    short.headers_mut().insert(KEY_KIND, HeaderValue::from_static("bytes"));
    assert_eq!(arrived(short).await.unwrap_err(), "it ends before its key does");
}

#[test]
fn an_outcome_reaches_the_caller() {
    let received = |sent: http::Response<Full<Bytes>>, body: &str| outcome(&sent.into_parts().0, body.into());
    let given = Answer::text("done").with_status(404);
    assert_eq!(received(answer(given.clone()), "done"), Ok(given.clone()));
    let loaded = Answer { load: Some(u64::MAX), width: Some(4), ..given };
    assert_eq!(received(answer(loaded.clone()), "done"), Ok(loaded));
    let mut forged = answer(Answer::text("done"));
    forged.headers_mut().insert(LOAD, HeaderValue::from_static("-1"));
    forged.headers_mut().insert(WIDTH, HeaderValue::from_static("18446744073709551616"));
    assert_eq!(received(forged, "done"), Ok(Answer::text("done")), "what is no number is no report");
    let right = InstanceId::new("a/b c").unwrap();
    for outcome in [
        Undelivered::NotMine(Some(right)),
        Undelivered::NotMine(None),
        Undelivered::Busy(Some(Duration::from_secs(2))),
        Undelivered::Busy(None),
        Undelivered::Unsent("stopping".into()),
        Undelivered::Barred("no token".into()),
        Undelivered::Unknown("the slot is lost".into()),
    ] {
        let sent = undelivered(&outcome);
        let body = sent.body().clone().collect().now_or_never().unwrap().unwrap().to_bytes();
        assert_eq!(received(sent, std::str::from_utf8(&body).unwrap()), Err(outcome));
    }
    let odd = received(http::Response::new(Full::default()), "");
    assert!(matches!(odd, Err(Undelivered::Unknown(_))), "{odd:?}");
    let mut too_long = http::Response::new(Full::default());
    *too_long.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    assert!(matches!(received(too_long, ""), Err(Undelivered::Barred(_))), "no member has seen it");
    let of_handler = Answer::text("too long").with_status(431);
    assert_eq!(received(answer(of_handler.clone()), "too long"), Ok(of_handler));
    // What is unknown here is never a refusal: the caller must not send it again unless it may be repeated.
    assert_eq!(undelivered(&Undelivered::Unknown("?".into())).headers()[PEER], UNKNOWN);
}
