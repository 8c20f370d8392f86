//! Sessions, which members' claims belong to. One ends when its checks do, and its locks are free only after its lock delay.
//! A session has no TTL and is not renewed: `renew` in `backend` renews the member's check.

use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use shardwise_core::Moment;

use crate::api::AclPermission;
use crate::client::Client;
use crate::error::Result;
use crate::names::segment;

/// The longest lock delay that Consul keeps; it cuts a longer one short without a word.
pub(crate) const LOCK_DELAY_MAX: Duration = Duration::from_mins(1);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Session {
    #[serde(rename = "ID")]
    id: String,
    /// Not said of one that was just made.
    #[serde(default)]
    name: String,
}

impl Client {
    /// Makes a session of that name as the check is called, which ends with the check, or with its node: an agent that dies leaves the
    /// check passing. Answers its id.
    pub(crate) async fn session_create(&self, check: &str, lock_delay: Duration) -> Result<String> {
        let body = json!({
            "Name": check,
            "LockDelay": format!("{}ms", lock_delay.as_millis()),
            "Behavior": "release",
            "NodeChecks": ["serfHealth"],
            "ServiceChecks": [{ "ID": check }],
        });
        let answer = self.call("making a session", Method::PUT, &self.at("/v1/session/create", &[]), Some(body.to_string())).await?;
        let created: Session = self.parsed(&self.checked(answer, &AclPermission::Session)?)?;
        Ok(created.id)
    }

    /// Whether the session is there, as the servers' leader knows it, and when that was asked.
    pub(crate) async fn session_lives(&self, id: &str) -> Result<(bool, Moment)> {
        let started = self.clock.now();
        let sessions = self.sessions(&format!("/v1/session/info/{}", segment(id))).await?;
        Ok((sessions.iter().any(|session| session.id == id), started))
    }

    /// The session of a check on this node, made by whatever process.
    pub(crate) async fn session_of(&self, node: &str, check: &str) -> Result<Option<String>> {
        let sessions = self.sessions(&format!("/v1/session/node/{}", segment(node))).await?;
        Ok(sessions.into_iter().find(|session| session.name == check).map(|session| session.id))
    }

    async fn sessions(&self, path: &str) -> Result<Vec<Session>> {
        let answer = self.call("reading a session", Method::GET, &self.at(path, &["consistent"]), None).await?;
        let answer = self.checked(answer, &AclPermission::Session)?;
        self.index_of(&answer, &AclPermission::Session)?;
        Ok(self.parsed::<Option<Vec<Session>>>(&answer)?.unwrap_or_default())
    }
}
