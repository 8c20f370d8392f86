//! The key-value store: transactions, single keys, and what begins with a prefix. Knows nothing of what is kept there.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Listed, PERMISSION_DENIED, READ_KEYS, WRITE_KEYS, says};
use crate::client::{Client, ConsulResponse};
use crate::error::Result;
use crate::names::segment;

/// The most operations that Consul takes in one transaction.
pub(crate) const OPERATIONS_MAX: usize = 64;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct KvPair {
    pub(crate) key: String,
    pub(crate) flags: u64,
    pub(crate) modify_index: u64,
    #[serde(default)]
    pub(crate) session: Option<String>,
    #[serde(default)]
    value: Option<String>,
}

impl KvPair {
    /// What is written there; nothing if that is no base64, as it always is.
    pub(crate) fn value(&self) -> Vec<u8> {
        self.value.as_ref().and_then(|value| STANDARD.decode(value).ok()).unwrap_or_default()
    }
}

/// The result of a transaction: all of it is done, or none.
#[derive(Debug)]
pub(crate) enum Txn {
    /// The keys as they are now, one for each operation that gives one.
    Done(Vec<KvPair>),
    Refused(Vec<TxnError>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct TxnError {
    #[serde(rename = "OpIndex")]
    pub(crate) at: usize,
    /// Consul's words.
    pub(crate) what: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TxnAnswer {
    results: Option<Vec<TxnResult>>,
    errors: Option<Vec<TxnError>>,
}

#[derive(Deserialize)]
struct TxnResult {
    #[serde(rename = "KV")]
    kv: Option<KvPair>,
}

pub(crate) fn operation(verb: &str, key: &str, more: Value) -> Value {
    let mut kv = json!({"Verb": verb, "Key": key});
    if let (Some(kv), Value::Object(more)) = (kv.as_object_mut(), more) {
        kv.extend(more);
    }
    json!({ "KV": kv })
}

pub(crate) fn encoded(value: &[u8]) -> String {
    STANDARD.encode(value)
}

impl Client {
    /// Up to [`OPERATIONS_MAX`] operations, all or none.
    pub(crate) async fn txn(&self, what: &'static str, operations: &[Value]) -> Result<Txn> {
        let answer = self.call(what, Method::PUT, &self.at("/v1/txn", &[]), Some(Value::from(operations).to_string())).await?;
        // If this token may not write the keys, the answer has the status of one whose conditions do not hold. Only its text differs.
        if answer.status == 409 && says(&answer, PERMISSION_DENIED) {
            return Err(self.no_right(WRITE_KEYS, "Permission denied".to_owned()));
        }
        if answer.status == 409 {
            // Nothing was done, whatever else it says.
            let refused: Option<TxnAnswer> = self.parsed(&answer).ok();
            return Ok(Txn::Refused(refused.and_then(|refused| refused.errors).unwrap_or_default()));
        }
        let done: TxnAnswer = self.parsed(&self.checked(answer, WRITE_KEYS)?)?;
        Ok(Txn::Done(done.results.unwrap_or_default().into_iter().filter_map(|result| result.kv).collect()))
    }

    pub(crate) async fn key(&self, what: &'static str, key: &str, right: &str) -> Result<Option<KvPair>> {
        let answer = self.get(what, &self.at(&path(key), &["consistent"]), None).await?;
        if answer.status == 404 {
            return Ok(None);
        }
        let stored: Vec<KvPair> = self.parsed(&self.checked(answer, right)?)?;
        Ok(stored.into_iter().next())
    }

    /// The keys with this prefix, which ends with a slash; `None` if there are none, or none that this token may see. With `wait` it
    /// answers once the index is another one or the time is over, and then with little: the names up to the next slash.
    pub(crate) async fn keys(
        &self,
        what: &'static str,
        prefix: &str,
        wait: Option<(u64, Duration)>,
    ) -> Result<Listed<Option<ConsulResponse>>> {
        let waiting = wait.map(|(index, wait)| format!("index={index}&wait={}ms", wait.as_millis()));
        let parts = waiting.as_deref().map_or(vec!["recurse", "consistent"], |wait| vec!["keys", "separator=/", "consistent", wait]);
        let started = self.clock.now();
        let answer = self.get(what, &self.at(&path(prefix), &parts), wait.map(|(_, wait)| wait)).await?;
        let none = answer.status == 404;
        let answer = if none { answer } else { self.checked(answer, READ_KEYS)? };
        Ok(Listed { started, index: self.index_of(&answer, READ_KEYS)?, found: (!none).then_some(answer) })
    }

    /// Writes one key if `index` is still its index, 0 for none. Its new index, or `None` if it is another one.
    pub(crate) async fn compare_and_set(&self, what: &'static str, key: &str, value: &str, flags: u64, index: u64) -> Result<Option<u64>> {
        let set = operation("cas", key, json!({ "Value": value, "Flags": flags, "Index": index }));
        match self.txn(what, &[set]).await? {
            Txn::Refused(_) => Ok(None),
            Txn::Done(stored) => match stored.first() {
                Some(stored) => Ok(Some(stored.modify_index)),
                None => Err(self.strange("a transaction without a result")),
            },
        }
    }
}

fn path(key: &str) -> String {
    format!("/v1/kv/{}", key.split('/').map(segment).collect::<Vec<_>>().join("/"))
}
