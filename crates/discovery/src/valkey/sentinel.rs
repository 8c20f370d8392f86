//! Where the primary is, as Sentinels say. They are asked before each connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisError};
use tokio::time::timeout;

use super::{DialFailure, Login, ValkeyAddress, dial};
use crate::one_line;
use crate::tls::TlsFiles;

/// How long one Sentinel may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// A primary that Sentinels name.
#[derive(Debug, Clone)]
pub struct SentinelTarget {
    /// Who is asked, in this order.
    pub sentinels: Vec<ValkeyAddress>,
    /// They and the servers speak TLS.
    pub tls: bool,
    /// The name under which they watch the primary.
    pub master_name: String,
    /// Who asks the Sentinels; a Sentinel has one database.
    pub login: Login,
}

/// Why a Sentinel names no primary.
#[derive(Debug, Clone)]
pub enum SentinelFailure {
    /// It is silent for that long.
    Silent(Duration),
    /// There is no connection to it.
    Dial(DialFailure),
    /// It refuses the question, or the connection broke.
    Refused(RedisError),
    /// It watches no primary of that name.
    UnknownMaster,
    /// It names no address that can be read, but this.
    Unreadable(String),
}

impl SentinelTarget {
    /// The Sentinels and the name, for people.
    pub fn places(&self) -> String {
        let places: Vec<_> = self.sentinels.iter().map(ToString::to_string).collect();
        format!("{} by {}", self.master_name, places.join(", "))
    }

    /// Asks one Sentinel after the other, first the one that answered last, whose number is in `first`. A former primary that has not heard
    /// of its successor may still be named: the caller makes sure of the server's role.
    ///
    /// # Errors
    /// Why each of them names none.
    pub async fn locate(&self, first: &AtomicUsize, files: &TlsFiles) -> Result<ValkeyAddress, Vec<(ValkeyAddress, SentinelFailure)>> {
        let (begin, mut failures) = (first.load(Ordering::Relaxed), Vec::new());
        for number in (begin..self.sentinels.len()).chain(0..begin) {
            let Some(sentinel) = self.sentinels.get(number) else { continue };
            match timeout(ASK_LIMIT, self.ask(sentinel, files)).await.unwrap_or(Err(SentinelFailure::Silent(ASK_LIMIT))) {
                Ok(address) => {
                    first.store(number, Ordering::Relaxed);
                    return Ok(address);
                }
                Err(failure) => failures.push((sentinel.clone(), failure)),
            }
        }
        Err(failures)
    }

    async fn ask(&self, sentinel: &ValkeyAddress, files: &TlsFiles) -> Result<ValkeyAddress, SentinelFailure> {
        // The whole question has a limit.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let dialled = dial(sentinel, files, &self.login.connection_info().set_skip_set_lib_name(), config, ASK_LIMIT).await;
        let (mut redis, _driver) = dialled.map_err(SentinelFailure::Dial)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master_name);
        let answer: Option<Vec<String>> = question.query_async(&mut redis).await.map_err(SentinelFailure::Refused)?;
        let answer = answer.ok_or(SentinelFailure::UnknownMaster)?;
        let address = match answer.as_slice() {
            [host, port] => port.parse().ok().map(|port| ValkeyAddress { tls: self.tls, host: host.clone(), port }),
            _ => None,
        };
        address.ok_or_else(|| SentinelFailure::Unreadable(one_line(&answer.join(" "))))
    }
}
