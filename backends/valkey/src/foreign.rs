//! Members of another fleet, which keeps a key for each of its workers on the same server until it expires: a group shows them as foreign
//! instances.
//!
//! The server does not report reliably when a key comes or expires, so the keys are looked for again and again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use shardwise_core::{InstanceId, MEMBERS_MAX};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::client::Client;
use crate::connection::LiveConnection;
use crate::error::{Failure, ValkeyResult};
use crate::member_keys::MemberKeys;
use crate::scripts::{bytes, text};

/// The shortest pause between two scans.
const SCAN_EVERY: Duration = Duration::from_secs(1);
/// A scan looks at every key of the database, so the pause after it is at least so many times as long as it took.
const PAUSE_PER_SCAN: u32 = 9;
/// How long one scan may take.
const SCAN_LIMIT: Duration = Duration::from_secs(10);
/// For how long what was found counts while scans fail.
const FINDINGS_LAST: Duration = Duration::from_secs(6);
/// How many keys the server looks at for one call.
const KEYS_A_CALL: usize = 1_000;
/// The ids of all keys that are there, in order.
async fn scan(keys: &MemberKeys, connection: &LiveConnection) -> ValkeyResult<Vec<InstanceId>> {
    let context = &connection.context;
    let meaning = |error: RedisError| match context.meaning(&error) {
        Failure::Forbidden { place, user, why, .. } => {
            let grant = format!("ACL SETUSER {} +scan", context.username.as_deref().unwrap_or("default"));
            Failure::Forbidden { place, user, why, grant }
        }
        other => other,
    };
    let strange = || Failure::Refused { place: context.place.clone(), why: "an answer to SCAN has no cursor and keys".into() };
    let (mut cursor, mut ids) = ("0".to_owned(), BTreeSet::new());
    loop {
        let mut asked = redis::cmd("SCAN");
        asked.arg(&cursor).arg("MATCH").arg(keys.pattern()).arg("COUNT").arg(KEYS_A_CALL);
        let answer: Value = asked.query_async(&mut connection.redis.clone()).await.map_err(meaning)?;
        let page = ScanPage::read(answer).ok_or_else(strange)?;
        ids.extend(page.keys.iter().filter_map(|key| keys.id(key)));
        if ids.len() > MEMBERS_MAX as usize {
            let why = format!("is {:?}, and more than {MEMBERS_MAX} keys begin so; name those of workers only", keys.as_str());
            return Err(Failure::Setting { setting: "member_keys", why });
        }
        if page.cursor == "0" {
            return Ok(ids.into_iter().collect());
        }
        cursor = page.cursor;
    }
}

/// One answer to SCAN.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ScanPage {
    pub(crate) cursor: String,
    pub(crate) keys: Vec<Vec<u8>>,
}

impl ScanPage {
    pub(crate) fn read(answer: Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let mut parts = parts.into_iter();
        let (cursor, Value::Array(keys)) = (text(parts.next()?)?, parts.next()?) else { return None };
        Some(Self { cursor, keys: keys.into_iter().filter_map(bytes).collect() })
    }
}

impl Client {
    /// The other fleet's members as they are now; none where none are followed.
    pub(crate) async fn foreign_members(&self) -> ValkeyResult<Arc<Vec<InstanceId>>> {
        let Some(keys) = &self.member_keys else { return Ok(Arc::default()) };
        let connection = self.connected().await?;
        let late = || Failure::TimedOut { place: connection.context.place.clone(), after: SCAN_LIMIT };
        let found = timeout(SCAN_LIMIT, scan(keys, &connection)).await.unwrap_or_else(|_| Err(late()));
        if found.as_ref().is_err_and(Failure::is_of_connection) {
            self.forget(&connection);
        }
        found.map(Arc::new)
    }
}

/// What the last scans have found.
#[derive(Debug, Clone)]
struct ScannedMembers {
    /// `None` before the first scan that succeeded.
    found: Option<(Arc<Vec<InstanceId>>, Instant)>,
    /// Why the last scan failed.
    failure: Option<Failure>,
}

impl ScannedMembers {
    const NONE: Self = Self { found: None, failure: None };

    /// The members; `None` before the first scan. An error if they cannot be found, at first or for long.
    fn present(&self) -> ValkeyResult<Option<&Arc<Vec<InstanceId>>>> {
        match (&self.found, &self.failure) {
            (None, Some(failure)) => Err(failure.clone()),
            (Some((_, at)), Some(failure)) if !failure.is_passing() || at.elapsed() > FINDINGS_LAST => Err(failure.clone()),
            (found, _) => Ok(found.as_ref().map(|(ids, _)| ids)),
        }
    }
}

/// Scans in a task until dropped.
pub(crate) struct MemberScan {
    scanned: watch::Receiver<ScannedMembers>,
    _task: AbortOnDropHandle<()>,
}

impl MemberScan {
    pub(crate) fn start(client: Arc<Client>) -> Self {
        let (shown, scanned) = watch::channel(ScannedMembers::NONE);
        Self { scanned, _task: AbortOnDropHandle::new(tokio::spawn(scan_on(client, shown))) }
    }

    /// The members that were found last; waits for the first scan.
    pub(crate) async fn latest(&mut self) -> ValkeyResult<Arc<Vec<InstanceId>>> {
        loop {
            let scanned = self.scanned.borrow_and_update().clone();
            if let Some(ids) = scanned.present()? {
                return Ok(Arc::clone(ids));
            }
            if self.scanned.changed().await.is_err() {
                // Its task has ended with its runtime.
                return Err(Failure::Gap);
            }
        }
    }

    /// Waits until a scan has found other members, or has failed; for ever if nothing is followed.
    pub(crate) async fn changed(scan: Option<&mut Self>) {
        let is_over = match scan {
            Some(scan) => scan.scanned.changed().await.is_err(),
            None => true,
        };
        if is_over {
            std::future::pending::<()>().await;
        }
    }
}

async fn scan_on(client: Arc<Client>, shown: watch::Sender<ScannedMembers>) {
    loop {
        let began = Instant::now();
        let found = client.foreign_members().await;
        let took = began.elapsed();
        shown.send_if_modified(|scanned| match found {
            Ok(ids) => {
                let is_other = scanned.failure.take().is_some() || scanned.found.as_ref().is_none_or(|(known, _)| *known != ids);
                scanned.found = Some((ids, began));
                is_other
            }
            Err(failure) => {
                tracing::debug!(%failure, "the keys of another fleet cannot be looked for");
                scanned.failure = Some(failure);
                true
            }
        });
        sleep(SCAN_EVERY.max(took * PAUSE_PER_SCAN)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_page_has_a_cursor_and_keys() {
        let page = ScanPage::read(Value::Array(vec![bulk("17"), Value::Array(vec![bulk("a"), bulk("b")])])).unwrap();
        assert_eq!(page, ScanPage { cursor: "17".into(), keys: vec![b"a".to_vec(), b"b".to_vec()] });
        for strange in [Value::Nil, Value::Array(Vec::new()), Value::Array(vec![bulk("0")]), Value::Array(vec![bulk("0"), bulk("a")])] {
            assert_eq!(ScanPage::read(strange), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_lasts_a_while_without_the_server_and_not_after_a_mistake() {
        let mut scanned = ScannedMembers::NONE;
        assert!(matches!(scanned.present(), Ok(None)));
        scanned.failure = Some(Failure::Gap);
        assert!(scanned.present().is_err(), "nothing is known");
        scanned.found = Some((Arc::default(), Instant::now()));
        assert!(matches!(scanned.present(), Ok(Some(_))));
        tokio::time::advance(FINDINGS_LAST + Duration::from_millis(1)).await;
        assert!(scanned.present().is_err());
        scanned.failure = Some(Failure::TooManyMembers);
        scanned.found = Some((Arc::default(), Instant::now()));
        assert!(scanned.present().is_err());
    }
}
