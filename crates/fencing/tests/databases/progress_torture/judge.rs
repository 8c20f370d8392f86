//! What the tables must have after all takeovers, and what an observer must see meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use super::KEYS;
use crate::progress_store::ProgressStore;

const POLL_EVERY: Duration = Duration::from_millis(3);

/// What was found wrong, and how much there was.
#[derive(Debug, Default)]
pub(super) struct ProgressFindings {
    pub(super) wrong: Vec<String>,
    pub(super) items: usize,
    pub(super) saves: usize,
}

/// Compares the work that is done with the positions that were saved.
pub(super) async fn judge(store: &ProgressStore) -> ProgressFindings {
    let mut findings = ProgressFindings::default();
    for key in KEYS {
        let done: Vec<(i64, i64)> = store.rows("SELECT item, epoch FROM done WHERE key = $1 ORDER BY item, epoch", key).await;
        // In a right run the items are 1, 2, 3 and so on, and the epochs rise with them.
        let wrong = (1..).zip(&done).find(|(expected, (item, _))| expected != item);
        findings.wrong.extend(wrong.map(|(expected, row)| format!("{key}: item and epoch {row:?} where item {expected} should be")));
        findings.wrong.extend(falling(done.iter().map(|row| row.1)).map(|epochs| format!("{key}: items under epochs {epochs:?}")));
        let saves = "SELECT number, epoch, first, last FROM saves WHERE key = $1 ORDER BY number, epoch";
        let saves: Vec<(i64, i64, i64, i64)> = store.rows(saves, key).await;
        let mut before = (0, 0);
        for save in &saves {
            let (number, _, first, last) = *save;
            if (number, first) != (before.0 + 1, before.1 + 1) {
                findings.wrong.push(format!("{key}: number, epoch, first and last {save:?} behind number and last {before:?}"));
            }
            before = (number, last);
        }
        findings.wrong.extend(falling(saves.iter().map(|save| save.1)).map(|epochs| format!("{key}: saves under epochs {epochs:?}")));
        let position = "SELECT number, position FROM shardwise_progress WHERE key = $1";
        let position: Vec<(i64, Option<String>)> = store.rows(position, key).await;
        let expected = vec![(before.0, Some(before.1.to_string()).filter(|_| before.0 > 0))];
        if position != expected || done.last().map_or(0, |row| row.0) != before.1 {
            let last = done.last();
            findings.wrong.push(format!("{key}: the position is {position:?}, the last save {expected:?}, the last item {last:?}"));
        }
        findings.items += done.len();
        findings.saves += saves.len();
    }
    findings
}

fn falling(epochs: impl Iterator<Item = i64>) -> Option<(i64, i64)> {
    let epochs: Vec<i64> = epochs.collect();
    epochs.windows(2).map(|pair| (pair[0], pair[1])).find(|(before, after)| before > after)
}

/// Reads the positions until `end`. Returns those that were below an earlier one.
pub(super) async fn backwards(store: ProgressStore, mut end: oneshot::Receiver<()>) -> Vec<String> {
    let (mut latest, mut wrong) = (BTreeMap::new(), Vec::new());
    while end.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
        let rows = "SELECT key, number, coalesce(position, '0'), epoch FROM shardwise_progress WHERE key <> $1";
        for (key, number, position, epoch) in store.rows::<(String, i64, String, i64)>(rows, "").await {
            let now = (number, position.parse::<i64>().unwrap(), epoch);
            let before = latest.insert(key.clone(), now).unwrap_or_default();
            if now.0 < before.0 || now.1 < before.1 || now.2 < before.2 {
                wrong.push(format!("{key}: number, position and epoch {before:?}, and later {now:?}"));
            }
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    wrong
}
