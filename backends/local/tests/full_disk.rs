//! A disk that is full for a while, or reports errors for a while: members go on in the same process, over the same backend.
//!
//! Each test runs once more by itself, on a separate small disk.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{PATIENCE, backend, eventually, granted, group, joined, registration, slots};
use shardwise_backend_local::LocalBackend;
use shardwise_core::ClaimName;
use shardwise_discovery::{Claims, Discovery, Error, ErrorKind, Notes, RecordId, WriteOutcome};
use shardwise_testkit::SmallDisk;

const DISK: u64 = 4 << 20;

/// What is wrong with the disk for a while, and what is said of it.
struct Trouble {
    begin: fn(&SmallDisk),
    end: fn(&SmallDisk),
    says: &'static str,
}

const FULL: Trouble = Trouble { begin: |disk| disk.fill().unwrap(), end: |disk| disk.empty().unwrap(), says: "no space left" };
const BROKEN: Trouble =
    Trouble { begin: |disk| disk.limit_files(Some(1)).unwrap(), end: |disk| disk.limit_files(None).unwrap(), says: "disk I/O error" };

/// Each kind of write.
async fn write(backend: &LocalBackend, record_id: &RecordId, round: u32) -> [Result<(), Error>; 4] {
    let claims = backend.claim_store(&group(), 0).await.unwrap();
    let note = ClaimName::new(format!("note {round}")).unwrap();
    [
        backend.renew(record_id, PATIENCE * 10).await.map(drop),
        backend.register(&registration(&format!("b {round}"), 1, Duration::from_secs(1))).await.map(drop),
        backend.acquire(record_id, &claims, &slots(round..round + 1)).await.map(drop),
        backend.write_note(&group(), &note, 0, "text").await.map(|noted| assert!(matches!(noted, WriteOutcome::Written(_)))),
    ]
}

async fn goes_on(disk: SmallDisk, Trouble { begin, end, says }: Trouble) {
    let member = backend(&disk.folder().join("members.db"));
    let a = joined(&member, "a", PATIENCE * 10).await;
    let other = backend(&disk.folder().join("other.db"));
    begin(&disk);
    for round in 0..3 {
        for answer in write(&member, &a.record_id(), round).await {
            let error = answer.unwrap_err();
            assert!(*error.kind() == ErrorKind::Unavailable && error.to_string().contains(says), "{round}: {error}");
        }
        assert_eq!(member.members(&group()).await.unwrap().view.members().len(), 1, "reading goes on");
        // A file that is new is made in a transaction.
        let error = other.register(&registration("a", 1, PATIENCE)).await.unwrap_err();
        assert!(*error.kind() == ErrorKind::Unavailable && error.to_string().contains(says), "{round}: {error}");
    }
    end(&disk);
    eventually("every kind of write goes on", async || write(&member, &a.record_id(), 9).await.iter().all(Result::is_ok).then_some(()))
        .await;
    assert_eq!(granted(&member, &a.record_id(), &slots(0..3)).await.len(), 3, "what failed was not acquired by anybody");
    joined(&other, "a", PATIENCE).await;
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

#[test]
fn members_go_on_after_a_full_disk() {
    let Some(disk) = SmallDisk::of_test("members_go_on_after_a_full_disk", DISK).unwrap() else { return };
    run(goes_on(disk, FULL));
}

#[test]
fn members_go_on_after_errors_of_the_disk() {
    let Some(disk) = SmallDisk::of_test("members_go_on_after_errors_of_the_disk", DISK).unwrap() else { return };
    run(goes_on(disk, BROKEN));
}
