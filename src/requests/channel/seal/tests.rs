use shardwise_core::{GroupName, Incarnation, InstanceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::proof::{Nonce, Recipient};
use super::*;

fn session() -> ProofSession {
    let (group, id) = (GroupName::new("g").unwrap(), InstanceId::new("a").unwrap());
    let recipient = Recipient { group: &group, instance_id: &id, incarnation: Incarnation::new(1) };
    ProofSession::new(b"0123456789abcdef", &recipient, &Nonce::random(), &Nonce::random())
}

/// The vectors of `docs/reference/protocol.md`, also computed by `docs/reference/protocol_check.py`.
#[tokio::test]
async fn the_bytes_are_those_of_the_page() {
    let (group, id) = (GroupName::new("workers").unwrap(), InstanceId::new("worker-1").unwrap());
    let recipient = Recipient { group: &group, instance_id: &id, incarnation: Incarnation::new(7) };
    let [callers, recipients]: [Nonce; 2] = ["11", "22"].map(|byte| byte.repeat(32).parse().unwrap());
    let session = ProofSession::new(b"members-know-this-one", &recipient, &callers, &recipients);
    let bytes = |hex: &str| (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect::<Vec<_>>();
    let asked = records(&session, &[b"ask", b"again"]).await;
    let of_page = [
        "000000032ddd34fd0120b373d016ab6b229567da4140f0971f8d84f7d4097c2364b7866b61736b",
        "000000055560aa9dd8857b72e4db37a6f68ba609f7b45fdf51ed76438c47fc15a974acbc616761696e",
    ];
    assert_eq!(asked, bytes(&of_page.concat()));
    let mut answering = SealedStream::new(Vec::new(), session, End::Recipient);
    answering.write_all(b"ok").await.unwrap();
    let answered = "000000021a8a11ff7bc5ccdbe0692bb06c9a3e8931558deef57f74dc5329878ff03190646f6b";
    assert_eq!(answering.stream, bytes(answered));
}

/// The records that a caller writes for these pieces.
async fn records(session: &ProofSession, pieces: &[&[u8]]) -> Vec<u8> {
    let mut writing = SealedStream::new(Vec::new(), session.clone(), End::Caller);
    for piece in pieces {
        writing.write_all(piece).await.unwrap();
    }
    writing.flush().await.unwrap();
    writing.stream
}

async fn read(session: &ProofSession, bytes: &[u8], end: End) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    SealedStream::new(bytes, session.clone(), end).read_to_end(&mut content).await.map(|_| content)
}

#[tokio::test]
async fn what_is_written_is_read_however_it_is_cut() {
    let (session, long) = (session(), vec![7; 3 * RECORD_BYTES_MAX + 5]);
    let bytes = records(&session, &[b"a", b"", b"bc", &long]).await;
    assert_eq!(bytes.len(), 3 + long.len() + 6 * HEAD_BYTES);
    let all = read(&session, &bytes, End::Recipient).await.unwrap();
    assert!(all == [&b"abc"[..], &long].concat());
    // Through a pipe of a few bytes, in both directions at once.
    let (here, there) = tokio::io::duplex(7);
    let (mut caller, mut recipient) =
        (SealedStream::new(here, session.clone(), End::Caller), SealedStream::new(there, session, End::Recipient));
    let (mut asked, mut answered) = (vec![0; long.len()], [0; 3]);
    let calling = async {
        caller.write_all(&long).await.unwrap();
        caller.flush().await.unwrap();
        caller.read_exact(&mut answered).await.unwrap();
    };
    let answering = async {
        recipient.read_exact(&mut asked).await.unwrap();
        recipient.write_all(b"yes").await.unwrap();
        recipient.flush().await.unwrap();
    };
    tokio::join!(calling, answering);
    assert!(asked == long && &answered == b"yes");
}

#[tokio::test]
async fn a_record_counts_once_in_its_place_and_its_direction() {
    let session = session();
    let (one, two) = (records(&session, &[b"one"]).await, records(&session, &[b"one", b"two"]).await);
    let refused = async |bytes: &[u8], end, why: &str| {
        let error = read(&session, bytes, end).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{why}: {error}");
    };
    refused(&one, End::Caller, "sent back").await;
    refused(&[one.clone(), one.clone()].concat(), End::Recipient, "a second time").await;
    refused(&two[one.len()..], End::Recipient, "without the one before").await;
    for at in LENGTH_BYTES..one.len() {
        let mut changed = one.clone();
        changed[at] ^= 1;
        refused(&changed, End::Recipient, &format!("byte {at} changed")).await;
    }
    assert!(read(&super::tests::session(), &one, End::Recipient).await.is_err(), "on another connection");
}

#[tokio::test]
async fn a_record_that_is_cut_off_or_too_long_is_an_error() {
    let session = session();
    let one = records(&session, &[b"one"]).await;
    assert_eq!(read(&session, b"", End::Recipient).await.unwrap(), b"");
    for end in 1..one.len() {
        assert_eq!(read(&session, &one[..end], End::Recipient).await.unwrap_err().kind(), ErrorKind::UnexpectedEof, "cut at {end}");
    }
    for length in [0, u32::try_from(RECORD_BYTES_MAX).unwrap() + 1, u32::MAX] {
        let bytes = [&length.to_be_bytes()[..], &[0; 100]].concat();
        assert_eq!(read(&session, &bytes, End::Recipient).await.unwrap_err().kind(), ErrorKind::InvalidData, "{length}");
    }
}
