//! Every way in which the file can be wrong, and what is said about it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Scratch, backend, expect_error, group, make, next_error, registration, run_sql, sql, view_of};
use shardwise_backend_local::{LocalBackend, LocalConfig, RECORD_BYTES_MAX};
use shardwise_core::MEMBERS_MAX;
use shardwise_discovery::{Clock, Discovery, Error, ErrorKind, METADATA_BYTES_MAX};
use sqlx::Connection;

const TTL: Duration = Duration::from_secs(10);

async fn error_of(path: &Path) -> Error {
    backend(path).members(&group()).await.unwrap_err()
}

async fn expect(path: &Path, kind: ErrorKind, text: impl AsRef<str>) {
    expect_error(&error_of(path).await, &kind, &format!("members: {}", text.as_ref()));
}

/// The error that the first joining worker gets; an observer's read creates nothing.
async fn expect_at_joining(path: &Path, kind: ErrorKind, text: impl AsRef<str>) {
    assert!(backend(path).members(&group()).await.unwrap().view.members().is_empty());
    let error = backend(path).register(&registration("a", 1, TTL)).await.unwrap_err();
    expect_error(&error, &kind, &format!("register: {}", text.as_ref()));
}

#[test]
fn a_path_that_cannot_be_one_is_refused_at_once() {
    let error = LocalBackend::open(LocalConfig { path: ":memory:".into() }, Clock::system()).unwrap_err();
    expect_error(
        &error,
        &ErrorKind::Misconfigured,
        "open: the path \":memory:\" names no file (for one process, use the memory backend); set discovery.local.path to a file on this machine, such as \
         \"/var/lib/my-app/shardwise.db\"",
    );
}

#[tokio::test]
async fn opening_touches_nothing_and_the_first_call_makes_directory_and_file() {
    let scratch = Scratch::new();
    let path = scratch.directory().join("a/b/members.db");
    let backend = backend(&path);
    assert!(!scratch.directory().join("a").exists());
    assert_eq!(format!("{backend:?}"), format!("LocalBackend {{ path: {path:?}, .. }}"));
    backend.register(&registration("a", 1, TTL)).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&scratch.directory().join("a")), 0o700);
    for name in ["members.db", "members.db-wal", "members.db-shm"] {
        assert_eq!(mode(&scratch.directory().join("a/b").join(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_file_that_others_could_have_written() {
    let scratch = Scratch::new();
    scratch.make().await;
    let wal = scratch.directory().join("members.db-wal");
    fs::write(&wal, "").unwrap();
    for path in [&scratch.path(), &wal] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
        let text =
            format!("{path:?} is writable by every user (mode 0666), so each of them could remove and add members; revoke that: chmod o-w");
        expect(&scratch.path(), ErrorKind::Denied, text).await;
        fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    }
    backend(&scratch.path()).members(&group()).await.unwrap();
    // Another owner's needs one who may make another user the owner; the rule itself is tested for everybody in `place`.
    if nix::unistd::Uid::effective().is_root() {
        chown(scratch.path(), Some(65_534), Some(65_534)).unwrap();
        let text = format!(
            "{:?} belongs to user 65534 and this process runs as user 0; run both as one user, or share the file on purpose: its directory with \
             mode 2770, the file with mode 0660, and both of one group",
            scratch.path()
        );
        expect(&scratch.path(), ErrorKind::Denied, text).await;
        chown(scratch.directory(), None, Some(65_534)).unwrap();
        fs::set_permissions(scratch.directory(), PermissionsExt::from_mode(0o2770)).unwrap();
        fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o660)).unwrap();
        backend(&scratch.path()).members(&group()).await.unwrap();
    }
}

#[tokio::test]
async fn a_directory() {
    let scratch = Scratch::new();
    let path = scratch.directory();
    let text = format!("{path:?} is a directory, not a file; set discovery.local.path to a file, such as {:?}", path.join("shardwise.db"));
    expect(path, ErrorKind::Misconfigured, text).await;
}

#[tokio::test]
async fn a_file_where_the_directory_should_be() {
    let scratch = Scratch::new();
    fs::write(scratch.directory().join("file"), "").unwrap();
    let path = scratch.directory().join("file/members.db");
    let text = format!("cannot reach {path:?}: Not a directory (os error 20); check the path and the rights of this user");
    expect(&path, ErrorKind::Misconfigured, text).await;
    let path = scratch.directory().join("file/deeper/members.db");
    assert!(!error_of(&path).await.is_retryable());
}

#[tokio::test]
async fn a_directory_that_cannot_be_made() {
    let path = Path::new("/proc/shardwise/members.db");
    let text = "cannot create the directory \"/proc/shardwise\": No such file or directory (os error 2); create it for this user, or set \
                discovery.local.path to a file elsewhere";
    expect_at_joining(path, ErrorKind::Misconfigured, text).await;
}

#[tokio::test]
async fn a_link_that_leads_nowhere() {
    let scratch = Scratch::new();
    symlink(scratch.directory().join("gone"), scratch.path()).unwrap();
    let text =
        format!("cannot reach {:?}: No such file or directory (os error 2); check the path and the rights of this user", scratch.path());
    expect(&scratch.path(), ErrorKind::Misconfigured, text).await;
}

#[tokio::test]
async fn something_that_is_no_database_is_left_as_it_is() {
    for content in ["hello\n".to_owned(), "not a database at all\n".repeat(1_000)] {
        let scratch = Scratch::new();
        fs::write(scratch.path(), &content).unwrap();
        let text =
            format!("{:?} is not an SQLite database; set discovery.local.path to another file, or move this one away", scratch.path());
        expect(&scratch.path(), ErrorKind::Misconfigured, text).await;
        assert_eq!(fs::read_to_string(scratch.path()).unwrap(), content);
    }
}

#[tokio::test]
async fn the_database_of_another_program_is_left_as_it_is() {
    let scratch = Scratch::new();
    run_sql(&scratch.path(), "CREATE TABLE orders (id INTEGER); PRAGMA application_id = 77").await;
    let before = fs::read(scratch.path()).unwrap();
    let text = format!(
        "{:?} is the SQLite database of another program (application id 77); set discovery.local.path to another file",
        scratch.path()
    );
    expect(&scratch.path(), ErrorKind::Misconfigured, text).await;
    assert_eq!(fs::read(scratch.path()).unwrap(), before);
}

#[tokio::test]
async fn a_newer_schema_names_both_versions() {
    let scratch = Scratch::new();
    scratch.make().await;
    run_sql(&scratch.path(), "PRAGMA user_version = 7").await;
    let text = format!(
        "{:?} has schema version 7, this program knows versions up to 1; upgrade it, or set discovery.local.path to another file",
        scratch.path()
    );
    expect(&scratch.path(), ErrorKind::Misconfigured, text).await;
}

#[tokio::test]
async fn a_damaged_file() {
    let scratch = Scratch::new();
    scratch.backend().register(&registration("a", 1, TTL)).await.unwrap();
    // Another connection cannot change the journal's mode, and SQLite does not wait for it.
    scratch.closed().await;
    run_sql(&scratch.path(), "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = delete").await;
    // Everything behind the first page, which holds the schema.
    let length = fs::metadata(scratch.path()).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(scratch.path()).unwrap();
    file.write_all_at(&vec![0xee; usize::try_from(length - 4_096).unwrap()], 4_096).unwrap();
    drop(file);
    let text = format!(
        "{:?} is damaged (database disk image is malformed); stop its workers, delete it together with its -wal and -shm files, and start \
         them again",
        scratch.path()
    );
    expect(&scratch.path(), ErrorKind::Misconfigured, text).await;
}

#[tokio::test]
async fn tables_that_are_gone() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    make(&backend).await;
    run_sql(&scratch.path(), "DROP TABLE member").await;
    let error = backend.members(&group()).await.unwrap_err();
    let text = format!(
        "members: {:?} is damaged (no such table: member); stop its workers, delete it together with its -wal and -shm files, and start \
         them again",
        scratch.path()
    );
    expect_error(&error, &ErrorKind::Misconfigured, &text);
}

#[tokio::test]
async fn a_record_of_a_version_that_cannot_be_read_is_named_and_not_skipped() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    backend.register(&registration("a", 1, TTL)).await.unwrap();
    run_sql(&scratch.path(), r#"UPDATE member SET record = '{"schema":9}'"#).await;
    let error = backend.members(&group()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Misconfigured);
    let said = error.to_string();
    assert!(said.starts_with("members: cannot read the record of \"a\": not a member record: missing field"), "{said}");
    assert!(said.ends_with("; if its worker is of another version, bring both to one"), "{said}");
    // A watch says it once, not in a loop, and goes on when the record is gone.
    let mut watch = backend.watch(&group(), TTL);
    assert_eq!(next_error(&mut watch).await.to_string(), said.replace("members: ", "watch: "));
    backend.deregister(&registration("a", 1, TTL).record_id()).await.unwrap();
    view_of(&mut watch, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_is_stuck_stops_writes_and_nothing_else() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = registration("a", 1, TTL);
    backend.register(&a).await.unwrap();
    let mut stuck = scratch.sql().await;
    let transaction = stuck.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let text = format!(
        "{:?} is locked by another process; if this lasts, one is stopped inside a write: `fuser -v {:?}` lists them",
        scratch.path(),
        scratch.path()
    );
    expect_error(&backend.renew(&a.record_id(), TTL).await.unwrap_err(), &ErrorKind::Unavailable, &format!("renew: {text}"));
    expect_error(&backend.register(&a).await.unwrap_err(), &ErrorKind::Unavailable, &format!("register: {text}"));
    assert_eq!(backend.members(&group()).await.unwrap().view.members().len(), 1);
    // A newcomer can read as well.
    assert_eq!(scratch.backend().members(&group()).await.unwrap().view.members().len(), 1);
    transaction.rollback().await.unwrap();
    backend.renew(&a.record_id(), TTL).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_program_keeps_to_itself() {
    let scratch = Scratch::new();
    let mut other = scratch.sql().await;
    sqlx::raw_sql("PRAGMA locking_mode = exclusive; BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    let backend = scratch.backend();
    let error = backend.members(&group()).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("is locked by another process"), "{error}");
    other.close().await.unwrap();
    backend.members(&group()).await.expect("opening is tried again by the next call");
}

#[tokio::test]
async fn a_file_deleted_underneath_is_noticed_and_opened_anew() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = registration("a", 1, TTL);
    backend.register(&a).await.unwrap();
    let mut watch = backend.watch(&group(), TTL);
    let before = view_of(&mut watch, &["a"]).await.revision();
    for name in ["members.db", "members.db-wal", "members.db-shm"] {
        fs::remove_file(scratch.directory().join(name)).unwrap();
    }
    let text = format!("{:?} was deleted or replaced while in use; it is opened again, and members have to register again", scratch.path());
    expect_error(&backend.renew(&a.record_id(), TTL).await.unwrap_err(), &ErrorKind::Unavailable, &format!("renew: {text}"));
    expect_error(&next_error(&mut watch).await, &ErrorKind::Unavailable, &format!("watch: {text}"));
    assert_eq!(*backend.renew(&a.record_id(), TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    backend.register(&a).await.unwrap();
    let after = view_of(&mut watch, &["a"]).await.revision();
    assert!(after > before, "a watch never goes back: {after} after {before}");
}

#[tokio::test]
async fn an_older_copy_in_the_files_place_does_not_take_a_watch_back() {
    let scratch = Scratch::new();
    let old = scratch.directory().join("old.db");
    let backend = scratch.backend();
    backend.register(&registration("a", 1, TTL)).await.unwrap();
    let mut connection = scratch.sql().await;
    sqlx::query("VACUUM INTO ?").bind(old.to_str().unwrap()).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    for id in ["b", "c", "d"] {
        backend.register(&registration(id, 1, TTL)).await.unwrap();
    }
    let mut watch = backend.watch(&group(), TTL);
    let before = view_of(&mut watch, &["a", "b", "c", "d"]).await.revision();
    fs::remove_file(scratch.directory().join("members.db-wal")).unwrap();
    fs::remove_file(scratch.directory().join("members.db-shm")).unwrap();
    fs::rename(&old, scratch.path()).unwrap();
    assert!(next_error(&mut watch).await.is_retryable());
    let after = view_of(&mut watch, &["a"]).await.revision();
    assert!(after > before, "{after} after {before}");
}

#[tokio::test]
async fn a_watch_says_what_is_wrong_and_goes_on_once_it_is_repaired() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path()).unwrap();
    let backend = scratch.backend();
    let mut watch = backend.watch(&group(), TTL);
    let error = next_error(&mut watch).await;
    assert_eq!(*error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().starts_with("watch: ") && error.to_string().contains("is a directory"), "{error}");
    fs::remove_dir(scratch.path()).unwrap();
    backend.register(&registration("a", 1, TTL)).await.unwrap();
    view_of(&mut watch, &["a"]).await;
}

#[tokio::test]
async fn what_is_too_large_is_refused_with_its_size() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let mut heavy = registration("a", 1, TTL);
    heavy.member.metadata = BTreeMap::from([("k".into(), "x".repeat(METADATA_BYTES_MAX))]);
    let text =
        format!("the metadata of \"a\" has {} bytes, at most {METADATA_BYTES_MAX} are allowed; make it smaller", METADATA_BYTES_MAX + 1);
    expect_error(&backend.register(&heavy).await.unwrap_err(), &ErrorKind::TooLarge, &format!("register: {text}"));
    heavy.member.metadata = BTreeMap::from([("k".into(), "x".repeat(METADATA_BYTES_MAX - 1))]);
    backend.register(&heavy).await.unwrap();
    heavy.member.zone = Some("z".repeat(RECORD_BYTES_MAX));
    let error = backend.update(&heavy).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().starts_with("update: the record of \"a\" has "), "{error}");
}

#[tokio::test]
async fn a_full_group_takes_no_new_member_and_keeps_its_own() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = registration("a", 1, TTL);
    backend.register(&a).await.unwrap();
    run_sql(&scratch.path(), "UPDATE member_group SET members = 16384").await;
    assert_eq!(MEMBERS_MAX, 16_384);
    let text = format!(
        "register: the group already has 16384 members, or {:?} 65536 records; stop some, or set discovery.local.path to another file",
        scratch.path()
    );
    expect_error(&backend.register(&registration("b", 1, TTL)).await.unwrap_err(), &ErrorKind::TooLarge, &text);
    backend.register(&a).await.unwrap();
}

/// Runs one test of this program again as a user who may not do everything, if this one may: root is stopped by no permission.
fn as_user_without_rights(test: &str) -> bool {
    const MARK: &str = "SHARDWISE_TEST_AS_NOBODY";
    if std::env::var_os(MARK).is_some() || !nix::unistd::Uid::effective().is_root() {
        return true;
    }
    // A copy, since the build directory may be closed to others.
    let scratch = Scratch::new();
    let program = scratch.directory().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(scratch.directory(), PermissionsExt::from_mode(0o755)).unwrap();
    let home = scratch.directory().join("tmp");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = Command::new(&program);
    command.args(["--exact", test]).env(MARK, "1").env("TMPDIR", &home).current_dir(&home).uid(65_534).gid(65_534);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    false
}

#[tokio::test]
async fn a_file_and_a_directory_that_are_read_only() {
    if !as_user_without_rights("errors::a_file_and_a_directory_that_are_read_only") {
        return;
    }
    let scratch = Scratch::new();
    scratch.make().await;
    let permit = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    permit(&scratch.path(), 0o400);
    let hint = "grant that, or set discovery.local.path to a file elsewhere";
    let denied = "(Permission denied (os error 13))";
    let text = format!("this user may not both read and write the file {:?} {denied}; {hint}", scratch.path());
    expect(&scratch.path(), ErrorKind::Denied, text).await;
    permit(&scratch.path(), 0o600);
    permit(scratch.directory(), 0o500);
    let text = format!("this user may not both read and write the directory {:?} {denied}; {hint}", scratch.directory());
    expect(&scratch.path(), ErrorKind::Denied, text).await;
    let path = scratch.directory().join("new/members.db");
    let text = format!(
        "cannot create the directory {:?}: Permission denied (os error 13); create it for this user, or set discovery.local.path to a file elsewhere",
        path.parent().unwrap()
    );
    expect_at_joining(&path, ErrorKind::Denied, text).await;
    permit(scratch.directory(), 0o000);
    let text = format!("cannot reach {:?}: Permission denied (os error 13); check the path and the rights of this user", scratch.path());
    expect(&scratch.path(), ErrorKind::Denied, text).await;
    permit(scratch.directory(), 0o700);
    backend(&scratch.path()).members(&group()).await.unwrap();
}

#[tokio::test]
async fn two_backends_that_make_the_file_at_once_agree() {
    for _ in 0..20 {
        let scratch = Scratch::new();
        let backends: Vec<_> = (0..6).map(|_| scratch.backend()).collect();
        let joins = backends.iter().zip(1u64..).map(|(backend, n)| async move {
            let registration = registration(&format!("m{n}"), n, TTL);
            backend.register(&registration).await.map(drop)
        });
        for join in futures::future::join_all(joins).await {
            join.unwrap();
        }
        let view = backends[0].members(&group()).await.unwrap().view;
        assert_eq!(view.members().len(), 6);
        let mut connection = sql(&scratch.path()).await;
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut connection).await.unwrap();
        assert_eq!(mode, "wal");
    }
}
