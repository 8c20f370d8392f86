//! The cases of [`Notes`](crate::Notes): made into tests by [`notes_conformance_tests!`](crate::notes_conformance_tests).

use std::sync::Arc;

use futures::future::join_all;
use shardwise_core::{ClaimName, GroupName};

use super::Scope;
use crate::{Discovery, ErrorKind, NOTE_BYTES_MAX, Note, Notes, WriteOutcome};

fn notes(backend: &dyn Discovery) -> &dyn Notes {
    backend.as_notes().expect("a backend under this suite has notes")
}

fn name(name: &str) -> ClaimName {
    ClaimName::new(name).expect("the case uses valid names")
}

impl Scope {
    /// The note as the other connection reads it.
    async fn note(&self, of: &str) -> Option<Note> {
        notes(&*self.peer).note(&self.group, &name(of)).await.expect("note")
    }

    async fn write(&self, of: &str, expected: u64, text: &str) -> WriteOutcome {
        notes(&*self.backend).write_note(&self.group, &name(of), expected, text).await.expect("write_note")
    }

    /// Writes what has to be written, and gives its version.
    async fn written(&self, of: &str, expected: u64, text: &str) -> u64 {
        match self.write(of, expected, text).await {
            WriteOutcome::Written(version) => version,
            WriteOutcome::Other(there) => panic!("{text:?} over version {expected} met {there:?}"),
        }
    }
}

/// Whatever is written is read as it was, over the other connection.
pub async fn notes_01_what_was_written_is_read_by_all(scope: &Scope) {
    assert_eq!(scope.note("a").await, None);
    let mut version = 0;
    for text in ["3", "", "{\"n\":4}", "é🦀\n\"\\ %2F", " "] {
        version = scope.written("a", version, text).await;
        assert!(version > 0, "0 stands for none");
        assert_eq!(scope.note("a").await, Some(Note { text: text.to_owned(), version }));
    }
}

/// A write over another version than the present one changes nothing, and returns the present note.
pub async fn notes_02_what_is_not_as_expected_stays_and_is_reported(scope: &Scope) {
    assert_eq!(scope.write("a", 7, "new").await, WriteOutcome::Other(None));
    assert_eq!(scope.note("a").await, None);
    let first = scope.written("a", 0, "first").await;
    let there = Note { text: "first".to_owned(), version: first };
    assert_eq!(scope.write("a", 0, "new").await, WriteOutcome::Other(Some(there.clone())));
    let second = scope.written("a", first, "second").await;
    assert_ne!(second, first);
    let there = Note { text: "second".to_owned(), version: second };
    for expected in [0, first, second + 1, u64::MAX] {
        assert_eq!(scope.write("a", expected, "new").await, WriteOutcome::Other(Some(there.clone())), "expected {expected}");
    }
    assert_eq!(scope.note("a").await, Some(there));
}

/// Twelve writers with the same expectation: one is carried out.
pub async fn notes_02_of_many_that_write_at_once_one_does(scope: &Scope) {
    let mut version = 0;
    for round in 0..5 {
        let backends = [&scope.backend, &scope.peer].into_iter().cycle().take(12).map(Arc::clone);
        let writing = backends.enumerate().map(|(n, backend)| async move {
            let text = format!("{round} by {n}");
            let noted = notes(&*backend).write_note(&scope.group, &name("a"), version, &text).await.expect("write_note");
            (text, noted)
        });
        let all = join_all(writing).await;
        let written: Vec<_> = all.iter().filter_map(|(text, noted)| matches!(noted, WriteOutcome::Written(_)).then_some(text)).collect();
        let there = scope.note("a").await.expect("a note");
        assert_eq!(written, [&there.text], "round {round}: one is written, and that one is there");
        for (text, noted) in &all {
            assert!(
                *noted == WriteOutcome::Written(there.version) || *noted == WriteOutcome::Other(Some(there.clone())),
                "{text}: {noted:?}"
            );
        }
        version = there.version;
    }
}

/// Versions differ even where texts do not.
pub async fn notes_03_the_same_text_again_is_another_version(scope: &Scope) {
    let mut seen = Vec::new();
    for text in ["1", "2", "1", "1"] {
        let version = scope.written("a", seen.last().copied().unwrap_or(0), text).await;
        assert!(!seen.contains(&version), "{version} again, after {seen:?}");
        seen.push(version);
    }
}

/// Written without any member or with one that leaves: they stay.
pub async fn notes_04_they_outlive_the_members(scope: &Scope) {
    let before = scope.written("a", 0, "of no member").await;
    let member = scope.joined("m", 1).await;
    let during = scope.written("b", 0, "of a member").await;
    scope.backend.deregister(&member.record_id()).await.expect("deregister");
    scope.expect_ids(&[], super::SOON).await;
    assert_eq!(scope.note("a").await.map(|note| note.version), Some(before));
    assert_eq!(scope.note("b").await.map(|note| note.version), Some(during));
}

/// The longest text is written and one byte more is refused.
pub async fn notes_05_a_text_that_is_too_long_is_refused(scope: &Scope) {
    let longest = "x".repeat(NOTE_BYTES_MAX);
    let version = scope.written("a", 0, &longest).await;
    let longer = format!("{longest}x");
    for expected in [version, 0] {
        let refused = notes(&*scope.backend).write_note(&scope.group, &name("a"), expected, &longer).await.expect_err("too long");
        assert_eq!(*refused.kind(), ErrorKind::TooLarge, "{refused}");
        assert!(!refused.is_retryable());
    }
    assert_eq!(scope.note("a").await, Some(Note { text: longest, version }));
}

/// Names that look alike are different notes, and another group has its own note of the same name.
pub async fn notes_06_any_name_goes_and_none_meets_another(scope: &Scope) {
    let names = ["a", "a/", "a/b", "/a", "A", "a b", "..", "%2F", "a%2Fb", "é", "🦀", "store", "\u{7f}\n", &"x".repeat(255)];
    for text in names {
        scope.written(text, 0, text).await;
    }
    for text in names {
        assert_eq!(scope.note(text).await.map(|note| note.text).as_deref(), Some(text));
    }
    let other = GroupName::new(format!("{}/a", scope.group)).expect("a valid name");
    assert_eq!(notes(&*scope.peer).note(&other, &name("a")).await.expect("note"), None);
    let there = notes(&*scope.peer).write_note(&other, &name("a"), 0, "there").await.expect("write_note");
    assert!(matches!(there, WriteOutcome::Written(_)));
    assert_eq!(scope.note("a").await.map(|note| note.text).as_deref(), Some("a"));
}

/// Makes one `#[tokio::test]` of each case of [`Notes`](crate::Notes), as [`conformance_tests!`](crate::conformance_tests) does for
/// [`Discovery`](crate::Discovery).
#[macro_export]
macro_rules! notes_conformance_tests {
    ($fixture:expr) => { $crate::notes_conformance_tests!($fixture; flavor = "multi_thread", worker_threads = 2); };
    ($fixture:expr; $($attribute:tt)*) => {
        $crate::conformance_tests!(@cases $fixture; [$($attribute)*];
            notes_01_what_was_written_is_read_by_all
            notes_02_what_is_not_as_expected_stays_and_is_reported
            notes_02_of_many_that_write_at_once_one_does
            notes_03_the_same_text_again_is_another_version
            notes_04_they_outlive_the_members
            notes_05_a_text_that_is_too_long_is_refused
            notes_06_any_name_goes_and_none_meets_another
        );
    };
}
