//! One connection to a server, or to the primary that Sentinels name: they are asked before each connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Value};
use shardwise::discovery::valkey::{DialFailure, SentinelFailure, SentinelTarget, ValkeyAddress, dial};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::super::connection::{ANSWER_WITHIN, words};
use super::super::net::connect_error;
use super::config::{RedisConfig, RedisTarget};
use crate::{Error, ErrorKind, Result};

/// The settings with the user and the password at a server, and at the Sentinels.
const OF_SERVER: &str = "the user in sink and the password in sink_password_file, and restart the publisher";
const OF_SENTINELS: &str = "sink_sentinel_username and the password in sink_sentinel_password_file, and restart the publisher";

/// A connection that works, or has worked.
#[derive(Debug)]
pub(super) struct RedisConnection {
    pub(super) redis: MultiplexedConnection,
    /// Set by a call that timed out, found the connection closed, or found the server a replica: the next call opens a new one.
    broken: AtomicBool,
    driver: AbortOnDropHandle<()>,
}

impl RedisConnection {
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed) || self.driver.is_finished()
    }

    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Finds the server, connects and logs in. How often the Sentinels were asked is in `turn`.
    pub(super) async fn open(config: &RedisConfig, turn: &AtomicUsize) -> Result<Self> {
        match timeout(2 * ANSWER_WITHIN, Self::connect(config, turn)).await {
            Ok(opened) => opened,
            Err(_) => Err(unavailable(&format!("Redis at {} does not answer", config.target.places()))),
        }
    }

    async fn connect(config: &RedisConfig, turn: &AtomicUsize) -> Result<Self> {
        let address = match &config.target {
            RedisTarget::Server(address) => address.clone(),
            RedisTarget::Sentinels(target) => target.locate(turn, &config.tls).await.map_err(|failures| no_primary(target, failures))?,
        };
        let server = format!("Redis at {address}");
        let info = config.login.connection_info().set_lib_name("shardwise", env!("CARGO_PKG_VERSION"));
        let options = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
        let dialled = dial(&address, &config.tls, &info, options, ANSWER_WITHIN).await;
        let (redis, driver) = dialled.map_err(|failure| dial_error(&server, OF_SERVER, failure))?;
        let mut live = Self { redis, broken: AtomicBool::new(false), driver };
        if config.target.has_sentinels() {
            live.check_role(&server).await?;
        } else {
            live.check_login(&server).await?;
        }
        Ok(live)
    }

    /// Without a password nothing has been sent yet, and the server may require one.
    async fn check_login(&mut self, server: &str) -> Result<()> {
        let asked: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut self.redis).await;
        asked.map(drop).map_err(|error| refused(server, OF_SERVER, &error))
    }

    /// A former primary that has not heard of its successor may still be named by a Sentinel, and a new one may not know of its promotion.
    async fn check_role(&mut self, server: &str) -> Result<()> {
        let asked: redis::RedisResult<Value> = redis::cmd("ROLE").query_async(&mut self.redis).await;
        let role = match asked {
            Err(error) if error.code() == Some("NOPERM") => {
                let text =
                    format!("{server} does not let this user ask for its role, which a failover needs: give the user the right +role");
                return Err(Error::new(ErrorKind::Denied, text));
            }
            asked => asked.map_err(|error| refused(server, OF_SERVER, &error))?,
        };
        if is_primary(&role) {
            return Ok(());
        }
        let what = "is not the primary, or not yet: the Sentinels will name another one, or it will become the primary";
        Err(unavailable(&format!("{server} {what}")))
    }
}

/// Whether this answer to ROLE is a primary's.
fn is_primary(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    match parts.first() {
        Some(Value::BulkString(text)) => text == b"master",
        Some(Value::SimpleString(text)) => text == "master",
        _ => false,
    }
}

fn unavailable(text: &str) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

/// Whether the user, its password or its rights are the cause.
pub(super) fn is_about_credentials(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
}

/// Why there is no connection to a server or to a Sentinel; `login` says where its user and password are.
fn dial_error(server: &str, login: &str, failure: DialFailure) -> Error {
    match failure {
        DialFailure::Connect(failure) => connect_error(server, failure),
        DialFailure::OnlyTls => {
            Error::new(ErrorKind::Denied, format!("{server} speaks TLS only: write rediss instead of redis in the address in sink"))
        }
        DialFailure::Login(error) => refused(server, login, &error),
    }
}

fn refused(server: &str, login: &str, error: &RedisError) -> Error {
    if is_about_credentials(error) {
        return Error::new(ErrorKind::Denied, format!("{server} does not accept this user and password: correct {login}"));
    }
    unavailable(&format!("{server} cannot be used: {}", words(error)))
}

/// Why no Sentinel names the primary. What may pass by itself decides: then it is worth trying again.
fn no_primary(target: &SentinelTarget, failures: Vec<(ValkeyAddress, SentinelFailure)>) -> Error {
    let mut reported: Option<Error> = None;
    for (sentinel, failure) in failures {
        let error = sentinel_error(target, &sentinel, failure);
        if reported.is_none() || error.is_retryable() {
            reported = Some(error);
        }
    }
    reported.unwrap_or_else(|| Error::new(ErrorKind::Settings, "the address of the Redis sink names no Sentinel"))
}

fn sentinel_error(target: &SentinelTarget, sentinel: &ValkeyAddress, failure: SentinelFailure) -> Error {
    let server = format!("the Sentinel {sentinel}");
    match failure {
        SentinelFailure::Silent(after) => unavailable(&format!("no Sentinel in sink answers: {sentinel} is silent for {after:?}")),
        SentinelFailure::Dial(failure) => dial_error(&server, OF_SENTINELS, failure),
        // A server that is no Sentinel does not know the command.
        SentinelFailure::Refused(error) if error.code() == Some("ERR") => {
            let text = format!("{sentinel} is no Sentinel ({}): name Sentinels in sink, or write redis:// and the primary", words(&error));
            Error::new(ErrorKind::Settings, text)
        }
        SentinelFailure::Refused(error) => refused(&server, OF_SENTINELS, &error),
        SentinelFailure::UnknownMaster => {
            let text = format!("the Sentinels know no primary named {:?}: correct the name behind the hosts in sink", target.master_name);
            Error::new(ErrorKind::Missing, text)
        }
        SentinelFailure::Unreadable(answer) => unavailable(&format!("{server} names the primary as {answer}")),
    }
}

#[cfg(test)]
mod tests {
    use shardwise::discovery::valkey::Login;

    use super::*;

    #[test]
    fn only_the_answer_of_a_primary_counts_as_one() {
        let role = |name: &str| Value::Array(vec![Value::BulkString(name.into()), Value::Int(1)]);
        assert!(is_primary(&role("master")));
        for other in [role("slave"), role("sentinel"), Value::Array(Vec::new()), Value::Nil, Value::SimpleString("master".into())] {
            assert!(!is_primary(&other), "{other:?}");
        }
    }

    #[test]
    fn a_sentinel_that_may_come_back_decides() {
        let address = |port| ValkeyAddress { tls: false, host: "h".into(), port };
        let target = SentinelTarget { sentinels: Vec::new(), tls: false, master_name: "main".into(), login: Login::default() };
        let silent = || SentinelFailure::Silent(ANSWER_WITHIN);
        let error = no_primary(&target, vec![(address(1), SentinelFailure::UnknownMaster), (address(2), silent())]);
        assert!(error.is_retryable() && error.to_string().contains("h:2 is silent"), "{error}");
        let error = no_primary(&target, vec![(address(1), SentinelFailure::UnknownMaster)]);
        assert!(!error.is_retryable() && error.to_string().contains("\"main\""), "{error}");
    }
}
