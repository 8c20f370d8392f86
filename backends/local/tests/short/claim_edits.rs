//! Claims in files that were edited by hand, wiped, put back, or made with the first version of the schema.

#![expect(clippy::unnecessary_debug_formatting, reason = "the text has the path like that")]

use std::fs;
use std::time::Duration;

use crate::common::{Follower, PATIENCE, Scratch, expect_error, granted, group, registration, release, run_sql, slots, store};
use shardwise_backend_local::LocalBackend;
use shardwise_core::ClaimStore;
use shardwise_discovery::{AcquireOutcome, Claims, Discovery, ErrorKind, RecordId};
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

const TTL: Duration = Duration::from_secs(20);

/// Two members of a file; the first holds ten slots.
async fn held_by_a(scratch: &Scratch) -> (LocalBackend, RecordId, RecordId) {
    let backend = scratch.backend();
    let (a, b) = (registration("a", 1, PATIENCE), registration("b", 2, PATIENCE));
    backend.register(&a).await.unwrap();
    backend.register(&b).await.unwrap();
    assert_eq!(granted(&backend, &a.record_id(), &slots(0..10)).await.len(), 10);
    (backend, a.record_id(), b.record_id())
}

#[tokio::test]
async fn the_file_refuses_claims_that_are_none() {
    let scratch = Scratch::new();
    held_by_a(&scratch).await;
    let mut connection = scratch.sql().await;
    for (statement, why) in [
        ("UPDATE claim SET epoch = 99", "claims are inserted and deleted, never changed"),
        (
            "INSERT INTO claim SELECT group_id, -1, holder, number, epoch FROM claim LIMIT 1",
            "CHECK constraint failed: CASE typeof(resource)",
        ),
        ("INSERT INTO claim SELECT group_id, 65536, holder, number, epoch FROM claim LIMIT 1", "CHECK constraint failed: CASE"),
        ("INSERT INTO claim SELECT group_id, '', holder, number, epoch FROM claim LIMIT 1", "CHECK constraint failed: CASE"),
        ("INSERT INTO claim SELECT group_id, 1.5, holder, number, epoch FROM claim LIMIT 1", "CHECK constraint failed: CASE"),
        ("INSERT INTO claim SELECT group_id, x'00', holder, number, epoch FROM claim LIMIT 1", "CHECK constraint failed: CASE"),
        ("INSERT INTO claim SELECT group_id, 11, holder, number, 0 FROM claim LIMIT 1", "CHECK constraint failed: epoch"),
        ("INSERT INTO claim SELECT group_id, 11, holder, 0, epoch FROM claim LIMIT 1", "CHECK constraint failed: number"),
        ("INSERT INTO claim SELECT group_id, 11, 'a', number, epoch FROM claim LIMIT 1", "cannot store TEXT value in INTEGER column"),
        ("INSERT INTO claim SELECT group_id, 11, NULL, number, epoch FROM claim LIMIT 1", "NOT NULL constraint failed"),
        ("INSERT INTO claim_floor VALUES ('workers', -1)", "CHECK constraint failed: floor"),
    ] {
        let error = sqlx::raw_sql(statement).execute(&mut connection).await.unwrap_err();
        assert!(error.to_string().contains(why), "{statement}: {error}");
    }
}

/// An edit that bypasses the schema's checks.
async fn forced(scratch: &Scratch, statement: &'static str) {
    let mut connection = scratch.sql().await;
    sqlx::raw_sql("PRAGMA ignore_check_constraints = ON").execute(&mut connection).await.unwrap();
    sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// One claim that is none, and what is said about it.
async fn cannot_be_read(statement: &'static str, why: &str) {
    let scratch = Scratch::new();
    let (backend, a, b) = held_by_a(&scratch).await;
    forced(&scratch, statement).await;
    let mut follower = Follower::of(&backend, TTL);
    let error = follower.error().await;
    assert_eq!(*error.kind(), ErrorKind::Misconfigured, "{error}");
    let path = scratch.path();
    let begin = format!("watch_claims: cannot read a claim in {path:?}: {why}");
    assert!(error.to_string().starts_with(&begin), "{error}, not {begin}");
    assert!(error.to_string().ends_with("; the table `claim` was edited by hand; delete that row"), "{error}");
    // Others are not disturbed, and it is held like any other.
    let answers = backend.acquire(&b, &store(&backend).await, &slots(77..79)).await.unwrap();
    let held = answers.iter().filter(|(_, acquired)| *acquired == AcquireOutcome::Held).count();
    assert_eq!(held, usize::from(why.contains("slot 77")), "{answers:?}");
    if held == 1 {
        let error = backend.acquire(&a, &store(&backend).await, &slots(77..78)).await.unwrap_err();
        assert!(error.to_string().starts_with("acquire: cannot read a claim in "), "{error}");
    }
    run_sql(&scratch.path(), "DELETE FROM claim WHERE typeof(resource) <> 'integer' OR resource NOT BETWEEN 0 AND 76").await;
    follower.until(0..10).await;
}

#[tokio::test]
async fn a_claim_that_cannot_be_read_is_named_and_the_watch_goes_on_when_it_is_gone() {
    let cases = [
        (
            "INSERT INTO claim SELECT group_id, 77, holder, number, 0 FROM claim LIMIT 1",
            "on slot 77: 0 is not an epoch: epochs are numbers from 1 to",
        ),
        ("INSERT INTO claim SELECT group_id, 77, holder, number, -5 FROM claim LIMIT 1", "on slot 77: -5 is not an epoch"),
        ("INSERT INTO claim SELECT group_id, -3, holder, number, epoch FROM claim LIMIT 1", "-3 is not a slot"),
        ("INSERT INTO claim SELECT group_id, 65536, holder, number, epoch FROM claim LIMIT 1", "65536 is not a slot"),
        ("INSERT INTO claim SELECT group_id, 2.5, holder, number, epoch FROM claim LIMIT 1", "2.5 is neither a slot nor a name"),
        (
            "INSERT INTO claim SELECT group_id, '', holder, number, epoch FROM claim LIMIT 1",
            "the claim's name is empty: give it at least one",
        ),
        ("INSERT INTO claim SELECT group_id, x'1337', holder, number, epoch FROM claim LIMIT 1", "there are bytes where a slot or a name"),
    ];
    // All at once: after an error that needs a repair, a watch looks again only after some seconds.
    futures::future::join_all(cases.map(|(statement, why)| cannot_be_read(statement, why))).await;
}

#[tokio::test]
async fn a_claim_whose_holder_was_never_there_is_free() {
    let scratch = Scratch::new();
    let (backend, _, b) = held_by_a(&scratch).await;
    run_sql(&scratch.path(), "INSERT INTO claim SELECT group_id, 77, 999999, number, epoch FROM claim LIMIT 1").await;
    Follower::of(&backend, TTL).until(0..10).await;
    assert_eq!(granted(&backend, &b, &slots(77..78)).await.len(), 1);
}

#[tokio::test]
async fn a_claim_deleted_by_hand_is_reported_as_free() {
    let scratch = Scratch::new();
    let (backend, a, b) = held_by_a(&scratch).await;
    let mut follower = Follower::of(&backend, TTL);
    follower.until(0..10).await;
    run_sql(&scratch.path(), "DELETE FROM claim WHERE resource >= 8").await;
    follower.until(0..8).await;
    assert_eq!(granted(&backend, &b, &slots(7..10)).await.len(), 2);
    assert!(granted(&backend, &a, &slots(8..10)).await.is_empty());
}

#[tokio::test]
async fn a_member_deleted_by_hand_loses_its_claims_and_learns_it() {
    let scratch = Scratch::new();
    let (backend, a, b) = held_by_a(&scratch).await;
    let mut follower = Follower::of(&backend, TTL);
    follower.until(0..10).await;
    run_sql(&scratch.path(), "DELETE FROM member WHERE instance_id = 'a'").await;
    follower.until(0..0).await;
    let error = backend.acquire(&a, &store(&backend).await, &slots(0..1)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost);
    assert_eq!(granted(&backend, &b, &slots(0..10)).await.len(), 10);
}

#[tokio::test]
async fn a_group_without_its_row_is_an_error_and_not_a_group_where_everything_is_held() {
    let scratch = Scratch::new();
    let (backend, a, b) = held_by_a(&scratch).await;
    run_sql(&scratch.path(), "DELETE FROM claim_group").await;
    let error = backend.acquire(&a, &store(&backend).await, &slots(20..21)).await.unwrap_err();
    let text = format!(
        "acquire: {:?} is damaged (the row of \"workers\" in the table `claim_group` is gone); stop its workers, delete it together with its \
         -wal and -shm files, and start them again",
        scratch.path()
    );
    expect_error(&error, &ErrorKind::Misconfigured, &text);
    // It comes back with the group.
    backend.deregister(&a).await.unwrap();
    backend.deregister(&b).await.unwrap();
    held_by_a(&scratch).await;
}

#[tokio::test]
async fn numbers_that_are_used_up_are_an_error_and_no_smaller_epoch() {
    let scratch = Scratch::new();
    let (backend, a, _) = held_by_a(&scratch).await;
    run_sql(&scratch.path(), "UPDATE store SET counter = 9007199254740991").await;
    let error = backend.acquire(&a, &store(&backend).await, &slots(20..21)).await.unwrap_err();
    let text =
        "acquire: the numbers of acquisitions are used up: 9007199254740992 is not an epoch: epochs are numbers from 1 to 9007199254740991";
    expect_error(&error, &ErrorKind::Misconfigured, text);
}

#[tokio::test]
async fn a_floor_is_the_groups_own_and_outlives_its_members() {
    let scratch = Scratch::new();
    let (backend, a, b) = held_by_a(&scratch).await;
    let other = shardwise_core::GroupName::new("others").unwrap();
    let known = backend.claim_store(&group(), u64::MAX).await.unwrap();
    assert_eq!(known.floor, ClaimStore::FLOOR_MAX, "half of the range stays");
    assert_eq!(backend.claim_store(&other, 0).await.unwrap(), ClaimStore { floor: 0, ..known });
    backend.deregister(&a).await.unwrap();
    backend.deregister(&b).await.unwrap();
    assert_eq!(store(&scratch.backend()).await, known);
    let error = backend.acquire(&a, &ClaimStore { floor: 3, ..known }, &[]).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "whoever has no record is told that first");
}

#[tokio::test]
async fn a_wiped_file_is_another_store_until_the_floor_is_raised() {
    let scratch = Scratch::new();
    let (backend, a, _) = held_by_a(&scratch).await;
    let mut follower = Follower::of(&backend, TTL);
    follower.until(0..10).await;
    let highest = follower.held.values().map(|claim| claim.epoch).max().unwrap();
    let known = store(&backend).await;
    for name in ["members.db", "members.db-wal", "members.db-shm"] {
        fs::remove_file(scratch.directory().join(name)).unwrap();
    }
    let text = format!("{:?} was deleted or replaced while in use; it is opened again, and members have to register again", scratch.path());
    let error = backend.acquire(&a, &known, &slots(10..11)).await.unwrap_err();
    expect_error(&error, &ErrorKind::Unavailable, &format!("acquire: {text}"));
    expect_error(&follower.error().await, &ErrorKind::Unavailable, &format!("watch_claims: {text}"));
    assert_eq!(*backend.acquire(&a, &known, &slots(10..11)).await.unwrap_err().kind(), ErrorKind::Lost);
    backend.register(&registration("a", 1, PATIENCE)).await.unwrap();
    let now = store(&backend).await;
    let error = backend.acquire(&a, &known, &slots(10..11)).await.unwrap_err();
    let text = format!("acquire: the store of claims is {} with the floor 0 now, it was {} with 0; ask for it again", now.id, known.id);
    expect_error(&error, &ErrorKind::OtherStore, &text);
    follower.until(0..0).await;
    backend.claim_store(&group(), highest.get()).await.unwrap();
    let held = granted(&backend, &a, &slots(0..10)).await;
    assert!(held.values().all(|epoch| *epoch > highest), "{held:?} after {highest}");
    follower.until(0..10).await;
}

#[tokio::test]
async fn an_older_copy_in_the_files_place_is_another_store_as_well() {
    let scratch = Scratch::new();
    let old = scratch.directory().join("old.db");
    let (backend, a, b) = held_by_a(&scratch).await;
    let mut connection = scratch.sql().await;
    sqlx::query("VACUUM INTO ?").bind(old.to_str().unwrap()).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let known = store(&backend).await;
    let unknown_to_the_copy = granted(&backend, &b, &slots(10..20)).await;
    fs::remove_file(scratch.directory().join("members.db-wal")).unwrap();
    fs::remove_file(scratch.directory().join("members.db-shm")).unwrap();
    fs::rename(&old, scratch.path()).unwrap();
    assert!(backend.acquire(&a, &known, &slots(30..31)).await.unwrap_err().is_retryable());
    let error = backend.acquire(&a, &known, &slots(30..31)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OtherStore, "{error}");
    assert_ne!(store(&backend).await.id, known.id);
    let held = granted(&backend, &a, &slots(10..20)).await;
    assert!(held.iter().all(|(slot, epoch)| *epoch > unknown_to_the_copy[slot]), "{unknown_to_the_copy:?}, then {held:?}");
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// What a program of the first version does, word for word.
const OLD_REGISTER: &str = "
    INSERT INTO member (group_name, instance_id, incarnation, joined, boot_id, deadline, previous, renewals, record)
    SELECT 'workers', ?1, ?2, counter + 1, ?3, ?4, ?4, 0, '{\"schema\":1}' FROM store WHERE true
    ON CONFLICT (group_name, instance_id) DO UPDATE SET
        joined = iif(incarnation = ?2, joined, excluded.joined), deadline = ?4, incarnation = ?2, renewals = renewals + 1";
const OLD_DELETE: &str = "DELETE FROM member WHERE group_name = 'workers' AND instance_id = ?1";

/// A process of the first version: it has made the file and keeps it open, its statements prepared.
struct OldProcess(SqliteConnection);

impl OldProcess {
    async fn start(scratch: &Scratch) -> Self {
        let mut connection = scratch.sql().await;
        sqlx::raw_sql("PRAGMA journal_mode = wal").execute(&mut connection).await.unwrap();
        sqlx::raw_sql(include_str!("../../migrations/0001_members.sql")).execute(&mut connection).await.unwrap();
        sqlx::raw_sql("PRAGMA application_id = 0x73687764; PRAGMA user_version = 1").execute(&mut connection).await.unwrap();
        let mut this = Self(connection);
        this.register("old", 7).await;
        this.register("gone", 1).await;
        this.delete("gone").await;
        this
    }

    async fn register(&mut self, id: &str, incarnation: u64) {
        let boot = fs::read_to_string(BOOT_ID).unwrap().trim().to_owned();
        let query = sqlx::query(OLD_REGISTER).bind(id).bind(format!("{incarnation:016x}")).bind(boot).bind(i64::MAX);
        query.execute(&mut self.0).await.unwrap();
    }

    async fn delete(&mut self, id: &str) {
        sqlx::query(OLD_DELETE).bind(id).execute(&mut self.0).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_of_the_first_version_is_extended_and_its_processes_go_on() {
    let scratch = Scratch::new();
    let mut old = OldProcess::start(&scratch).await;
    // Several new ones at once.
    let backends: Vec<_> = (0..5).map(|_| scratch.backend()).collect();
    let found = group();
    let stores = futures::future::join_all(backends.iter().map(|backend| backend.claim_store(&found, 0))).await;
    assert!(stores.iter().all(|store| *store.as_ref().unwrap() == *stores[0].as_ref().unwrap()), "{stores:?}");
    let backend = &backends[0];
    let mut follower = Follower::of(backend, TTL);
    follower.until(0..0).await;
    // The member that was there before can claim.
    let record_id = RecordId { incarnation: shardwise_core::Incarnation::new(7), ..registration("old", 0, TTL).record_id() };
    granted(backend, &record_id, &slots(0..5)).await;
    follower.until(0..5).await;
    old.register("old", 7).await;
    assert_eq!(granted(backend, &record_id, &slots(0..5)).await.len(), 5, "a registration that is repeated changes nothing");
    old.register("old", 8).await;
    follower.until(0..0).await;
    let record_id = RecordId { incarnation: shardwise_core::Incarnation::new(8), ..record_id };
    granted(backend, &record_id, &slots(0..5)).await;
    follower.until(0..5).await;
    old.delete("old").await;
    follower.until(0..0).await;
    // The group ends and begins again by the old process.
    old.register("old", 9).await;
    let record_id = RecordId { incarnation: shardwise_core::Incarnation::new(9), ..record_id };
    let held = granted(backend, &record_id, &slots(0..5)).await;
    follower.until(0..5).await;
    release(backend, &record_id, &held).await;
    follower.until(0..0).await;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut old.0).await.unwrap();
    assert_eq!(version, 1, "so that a program of the first version can open the file as well");
}
