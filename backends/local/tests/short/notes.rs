//! Notes in files that were edited by hand, or were made before notes existed.

use crate::common::{Scratch, group, run_sql, store};
use shardwise_core::ClaimName;
use shardwise_discovery::{ErrorKind, Note, Notes, WriteOutcome};

fn name() -> ClaimName {
    ClaimName::new("daemon").unwrap()
}

#[tokio::test]
async fn a_note_that_is_no_text_is_an_error_and_a_deleted_one_never_comes_back_under_its_version() {
    let scratch = Scratch::new();
    let here = scratch.backend();
    assert_eq!(here.write_note(&group(), &name(), 0, "3").await.unwrap(), WriteOutcome::Written(1));
    run_sql(&scratch.path(), "UPDATE note SET text = CAST(x'ff' AS TEXT)").await;
    let error = here.note(&group(), &name()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Misconfigured, "{error}");
    run_sql(&scratch.path(), "DELETE FROM note").await;
    assert_eq!(here.note(&group(), &name()).await.unwrap(), None);
    assert_eq!(here.write_note(&group(), &name(), 1, "4").await.unwrap(), WriteOutcome::Other(None));
    assert_eq!(here.write_note(&group(), &name(), 0, "4").await.unwrap(), WriteOutcome::Written(2));
}

/// As a program left it that knew members and claims and no notes.
#[tokio::test]
async fn a_file_without_notes_is_extended_when_it_is_opened() {
    let scratch = Scratch::new();
    let before = store(&scratch.backend()).await;
    run_sql(&scratch.path(), "DROP TABLE note").await;
    let backends: Vec<_> = (0..5).map(|_| scratch.backend()).collect();
    let (group, name) = (group(), name());
    let all = futures::future::join_all(backends.iter().map(|backend| backend.write_note(&group, &name, 0, "3"))).await;
    let written = all.iter().filter(|noted| matches!(noted, Ok(WriteOutcome::Written(1)))).count();
    assert_eq!(written, 1, "{all:?}");
    assert_eq!(backends[4].note(&group, &name).await.unwrap(), Some(Note { text: "3".into(), version: 1 }));
    assert_eq!(store(&backends[0]).await, before, "the same store as before");
}
