use super::*;

const SECRET: &[u8] = b"members-know-this-one";

/// Both ends of a connection to `worker-1`; the recipient is that member unless `is_other`.
async fn meet(
    callers: Protection<'static>,
    own: Protection<'static>,
    is_other: bool,
) -> (std::result::Result<(), NotThere>, std::result::Result<(), HelloRefusal>) {
    let (here, mut there) = tokio::io::duplex(1_024);
    let names = || (GroupName::new("workers").unwrap(), InstanceId::new("worker-1").unwrap());
    let calling = async {
        let (group, instance_id) = names();
        let recipient = Recipient { group: &group, instance_id: &instance_id, incarnation: Incarnation::new(7) };
        let called = call(here, &recipient, &callers).await.unwrap_or(Err(NotThere::Elsewhere("it closed the connection")));
        match called {
            Ok(mut stream) => {
                stream.write_all(b"hi").await.unwrap();
                stream.flush().await.unwrap();
                Ok(())
            }
            Err(why) => Err(why),
        }
    };
    let answering = async {
        let hello = hello(&mut there).await.unwrap()?;
        let (group, instance_id) = names();
        let incarnation = Incarnation::new(if is_other { 8 } else { 7 });
        if hello.incarnation != incarnation {
            refuse(&mut there, HelloRefusal::OtherMember).await.unwrap();
            return Err(HelloRefusal::OtherMember);
        }
        let recipient = Recipient { group: &group, instance_id: &instance_id, incarnation };
        let session = match proven(&mut there, &hello, &recipient, &own).await.unwrap_or(Err(HelloRefusal::Unproven)) {
            Ok(session) => session,
            Err(refusal) => {
                // The caller may have closed it.
                let _ = refuse(&mut there, refusal).await;
                return Err(refusal);
            }
        };
        let mut stream = open(there, session, &own).await.unwrap();
        let mut heard = [0; 2];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hi");
        Ok(())
    };
    tokio::join!(calling, answering)
}

const fn with(secret: &'static [u8]) -> Protection<'static> {
    Protection { secret: Some(secret), binding: None }
}

const NONE: Protection<'static> = Protection { secret: None, binding: None };

#[tokio::test]
async fn members_with_one_secret_or_none_meet() {
    for protection in [with(SECRET), NONE, Protection { secret: Some(SECRET), binding: Some(b"of this connection") }] {
        let (has_secret, is_bound) = (protection.secret.is_some(), protection.binding.is_some());
        assert_eq!(meet(protection, protection, false).await, (Ok(()), Ok(())), "secret: {has_secret}, bound: {is_bound}");
    }
}

#[tokio::test]
async fn whoever_has_another_secret_or_none_is_told_so() {
    let bound = |binding| Protection { secret: Some(SECRET), binding: Some(binding) };
    let cases = [
        (with(SECRET), with(b"members-know-this-onf"), "does not prove"),
        (with(SECRET), NONE, "it has no peer token"),
        (NONE, with(SECRET), "this process has none"),
        (bound(b"one"), bound(b"other"), "does not prove"),
        (bound(b"one"), with(SECRET), "does not prove"),
    ];
    for (callers, own, says) in cases {
        let (called, answered) = meet(callers, own, false).await;
        assert!(matches!(&called, Err(NotThere::Unproven(why)) if why.contains(says)), "{says}: {called:?}");
        assert_eq!(answered, Err(HelloRefusal::Unproven), "{says}");
    }
}

#[tokio::test]
async fn another_member_and_another_version_are_told_apart() {
    let (called, _) = meet(with(SECRET), with(SECRET), true).await;
    assert_eq!(called, Err(NotThere::Elsewhere("another process is there now, or the member has left")));
    // As version 2 of messages began.
    let old = br#"{"shardwise":2,"group":"workers","instance_id":"worker-1","incarnation":"0000000000000007","nonce":""}"#;
    let (mut here, mut there) = tokio::io::duplex(1_024);
    here.write_u32(u32::try_from(old.len()).unwrap()).await.unwrap();
    here.write_all(old).await.unwrap();
    assert_eq!(hello(&mut there).await.unwrap().unwrap_err(), HelloRefusal::OtherProtocol);
}

#[tokio::test]
async fn frames_are_short() {
    let (mut here, mut there) = tokio::io::duplex(1_024);
    here.write_u32(FRAME_BYTES_MAX + 1).await.unwrap();
    assert_eq!(hello(&mut there).await.unwrap_err().kind(), ErrorKind::InvalidData);
    here.write_u32(3).await.unwrap();
    here.write_all(b"{x}").await.unwrap();
    assert!(hello(&mut there).await.is_err());
}
