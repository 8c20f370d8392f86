//! The endpoints of Consul's HTTP API that are used, each with its answer and the right it needs. Those of keys are in `keys`; Consul's
//! paths appear in no other module.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use shardwise_core::Moment;
use shardwise_discovery::one_line;

use crate::client::{Client, ConsulResponse};
use crate::error::{Failure, Result};
use crate::names::{any_case, literal, segment};
use crate::wire::{AgentCheck, Service, ServiceEntry};

/// The answer of an agent that has lost its servers, or of a server without a leader.
const NO_SERVERS: [&str; 6] =
    ["No cluster leader", "No known Consul servers", "leadership lost", "not the leader", "failed to get conn", "stream closed"];
/// How old what a server knows may be. A `consistent` answer is of now.
const CONTACT_MARGIN: Duration = Duration::from_millis(100);
/// The longest lock delay that Consul keeps; it cuts a longer one short without a word.
pub(crate) const LOCK_DELAY_MAX: Duration = Duration::from_mins(1);

/// Consul's words for a missing right, without their first letter, so that either case matches.
pub(crate) const PERMISSION_DENIED: &str = "ermission denied";
/// Rights that Consul may find missing.
const READ_NODES: &str = "node:read (node_prefix \"\")";
pub(crate) const WRITE_KEYS: &str = "key:write (key_prefix \"shardwise/\")";
pub(crate) const READ_KEYS: &str = "key:read (key_prefix \"shardwise/\")";
const SESSIONS: &str = "session:write (session_prefix \"\")";

fn write_service(name: &str) -> String {
    format!("service:write for {name:?}")
}

fn read_service(name: &str) -> String {
    format!("service:read for {name:?}")
}

/// What the servers' leader knows now.
pub(crate) struct Listed<T> {
    /// Before the request.
    pub(crate) started: Moment,
    /// Consul's index of it; at least 1.
    pub(crate) index: u64,
    pub(crate) found: T,
}

pub(crate) type Instances = Listed<Vec<ServiceEntry>>;

/// The filter for instances that say of themselves that they have this check.
pub(crate) fn of_check(check: &str) -> String {
    format!("Service.Meta.shardwise_check == {}", literal(check))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConsulSession {
    #[serde(rename = "ID")]
    id: String,
    /// Not said of one that was just made.
    #[serde(default)]
    name: String,
}

impl Client {
    /// Registers with the agent, in the place of whatever has the same service id there. `afresh` also takes the place of its checks.
    pub(crate) async fn register_service(&self, service: &str, definition: String, afresh: bool) -> Result<()> {
        let target = if afresh { "/v1/agent/service/register?replace-existing-checks=true" } else { "/v1/agent/service/register" };
        let answer = self.call("registering", Method::PUT, target, Some(definition)).await?;
        self.checked(answer, &write_service(service)).map(drop)
    }

    pub(crate) async fn deregister_service(&self, service: &str, service_id: &str) -> Result<()> {
        let target = format!("/v1/agent/service/deregister/{}", segment(service_id));
        let answer = self.call("deregistering", Method::PUT, &target, None).await?;
        // It is gone already.
        if answer.status == 404 || answer.status == 500 && says(&answer, "nknown service") {
            return Ok(());
        }
        self.checked(answer, &write_service(service)).map(drop)
    }

    /// Marks the agent's check as passing. `false` if the agent does not know the check.
    pub(crate) async fn check_pass(&self, service: &str, check: &str, note: &str) -> Result<bool> {
        let target = format!("/v1/agent/check/pass/{}?note={}", segment(check), segment(note));
        self.check(service, &target).await
    }

    /// Marks the agent's check as failing, which removes the instance from the view.
    pub(crate) async fn check_fail(&self, service: &str, check: &str) -> Result<bool> {
        self.check(service, &format!("/v1/agent/check/fail/{}", segment(check))).await
    }

    async fn check(&self, service: &str, target: &str) -> Result<bool> {
        let answer = self.call("a renewal", Method::PUT, target, None).await?;
        let unknown = ["nknown check", "does not have associated TTL"].iter().any(|text| says(&answer, text));
        if answer.status == 404 || answer.status == 500 && unknown {
            return Ok(false);
        }
        self.checked(answer, &write_service(service)).map(|_| true)
    }

    /// The services on this agent that have this id in either case, or say that they are this instance.
    pub(crate) async fn agent_services(&self, id: &str) -> Result<Vec<Service>> {
        let filter = format!("ID matches {} or Meta.shardwise_id == {}", any_case(id), literal(id));
        let target = format!("/v1/agent/services?filter={}", segment(&filter));
        let answer = self.get("reading the agent's services", &target, None).await?;
        let found: HashMap<String, Service> = self.parsed(&self.checked(answer, &read_service(id))?)?;
        Ok(found.into_values().collect())
    }

    pub(crate) async fn agent_check(&self, check: &str) -> Result<Option<AgentCheck>> {
        let filter = format!("CheckID == {}", literal(check));
        let target = format!("/v1/agent/checks?filter={}", segment(&filter));
        let answer = self.get("reading the agent's checks", &target, None).await?;
        let found: HashMap<String, AgentCheck> = self.parsed(&self.checked(answer, &read_service(""))?)?;
        Ok(found.into_values().next())
    }

    /// Asks what an empty list means: no members, or a token that may not see them. Consul's answer is the same for both.
    pub(crate) async fn may_see(&self, service: &str) -> Result<()> {
        let said = || "the servers show no members".to_owned();
        match self.may_read(&[("service", service), ("node", "")]).await?.as_deref() {
            Some([false, ..]) => Err(self.no_right(&read_service(service), said())),
            Some([true, true]) => Ok(()),
            Some(_) => Err(self.no_right(READ_NODES, said())),
            None => self.sees_a_node().await,
        }
    }

    /// Asks what an empty list of keys means: no keys, or a token that may not see them. Consul's answer is the same for both.
    pub(crate) async fn may_see_keys(&self, prefix: &str) -> Result<()> {
        match self.may_read(&[("key", prefix)]).await?.as_deref() {
            Some([false]) => Err(self.no_right(READ_KEYS, "the servers show no claims".to_owned())),
            _ => Ok(()),
        }
    }

    /// That this token sees the members on all nodes. Consul leaves out the others in silence, and two workers that do not see each other
    /// would both own everything.
    pub(crate) async fn sees_all_nodes(&self) -> Result<()> {
        if self.sees_nodes.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.may_read(&[("node", "")]).await?.as_deref() {
            Some([true]) => {}
            Some(_) => return Err(self.no_right(READ_NODES, "without it, members on other nodes stay invisible".to_owned())),
            None => self.sees_a_node().await?,
        }
        self.sees_nodes.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Every cluster has nodes, so a token that sees none may see none. If that cannot be asked, the token is assumed to see some.
    async fn sees_a_node(&self) -> Result<()> {
        let answer = self.get("listing nodes", &self.at("/v1/catalog/nodes", &["consistent"]), None).await?;
        let nodes: Vec<serde::de::IgnoredAny> = self.parsed(&self.checked(answer, READ_NODES)?)?;
        if nodes.is_empty() { Err(self.no_right(READ_NODES, "the servers show no members".to_owned())) } else { Ok(()) }
    }

    /// Whether this token may read these, each a kind and a name; no name for all of the kind. `None` where one cannot ask.
    async fn may_read(&self, what: &[(&str, &str)]) -> Result<Option<Vec<bool>>> {
        #[derive(Deserialize)]
        struct AuthorizeResult {
            #[serde(rename = "Allow")]
            allow: bool,
        }
        let ask: Vec<_> = what.iter().map(|(kind, name)| json!({"Resource": kind, "Access": "read", "Segment": name})).collect();
        let answer = self.call("asking for rights", Method::POST, "/v1/internal/acl/authorize", Some(json!(ask).to_string())).await?;
        match answer.status {
            // ACLs are off.
            401 => Ok(Some(vec![true; what.len()])),
            // A version that cannot be asked.
            404 | 405 => Ok(None),
            _ => {
                let rights: Vec<AuthorizeResult> = self.parsed(&self.checked(answer, READ_NODES)?)?;
                Ok(Some(rights.iter().map(|right| right.allow).collect()))
            }
        }
    }

    /// The passing instances of a service that the filter leaves. With `index` and `wait` it answers once the index has changed or the time
    /// is over.
    pub(crate) async fn passing(&self, service: &str, filter: Option<&str>, wait: Option<(u64, Duration)>) -> Result<Instances> {
        let filter = filter.map(|filter| format!("filter={}", segment(filter)));
        let waiting = wait.map(|(index, wait)| format!("index={index}&wait={}ms", wait.as_millis()));
        let parts: Vec<_> = ["passing", "consistent"].into_iter().chain(filter.as_deref()).chain(waiting.as_deref()).collect();
        let target = self.at(&format!("/v1/health/service/{}", segment(service)), &parts);
        self.list(service, &target, wait.map(|(_, wait)| wait)).await
    }

    /// Instances that say of themselves that they have this check, whether they pass or not, in whatever datacenter the agent is.
    pub(crate) async fn registered(&self, service: &str, check: &str) -> Result<Vec<ServiceEntry>> {
        let filter = segment(&of_check(check));
        let target = format!("/v1/health/service/{}?consistent&filter={filter}", segment(service));
        Ok(self.list(service, &target, None).await?.found)
    }

    async fn list(&self, service: &str, target: &str, wait: Option<Duration>) -> Result<Instances> {
        let started = self.clock.now();
        let answer = self.get("reading the group", target, wait).await?;
        let answer = self.checked(answer, &read_service(service))?;
        Ok(Listed { started, index: self.index_of(&answer, READ_NODES)?, found: self.parsed(&answer)? })
    }

    /// The index of an answer that is of now; `right` is what lacks if the servers say that they have left something out.
    pub(crate) fn index_of(&self, answer: &ConsulResponse, right: &str) -> Result<u64> {
        let number = |name| answer.header(name).and_then(|text| text.parse::<u64>().ok());
        let Some(index) = number("x-consul-index") else { return Err(self.strange("a list without X-Consul-Index")) };
        if answer.header("x-consul-knownleader") != Some("true") {
            return Err(self.no_servers("no leader is known"));
        }
        match number("x-consul-lastcontact") {
            Some(ms) if u128::from(ms) <= CONTACT_MARGIN.as_millis() => {}
            other => {
                let said = format!("its last contact to the leader was {} ms ago", other.map_or("?".to_owned(), |ms| ms.to_string()));
                return Err(self.no_servers(&said));
            }
        }
        // Said by newer versions only.
        if answer.header("x-consul-results-filtered-by-acls") == Some("true") {
            return Err(self.no_right(right, "the servers leave out what this token may not see".to_owned()));
        }
        // Some restarts answer 0, with which the next query would not wait.
        Ok(index.max(1))
    }

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
        let created: ConsulSession = self.parsed(&self.checked(answer, SESSIONS)?)?;
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

    async fn sessions(&self, path: &str) -> Result<Vec<ConsulSession>> {
        let answer = self.get("reading a session", &self.at(path, &["consistent"]), None).await?;
        let answer = self.checked(answer, SESSIONS)?;
        self.index_of(&answer, SESSIONS)?;
        Ok(self.parsed::<Option<Vec<ConsulSession>>>(&answer)?.unwrap_or_default())
    }

    /// A path with the datacenter and these parts of a query.
    pub(crate) fn at(&self, path: &str, parts: &[&str]) -> String {
        let datacenter = self.datacenter.as_ref().map(|datacenter| format!("dc={}", segment(datacenter)));
        let query = parts.iter().copied().chain(datacenter.as_deref()).collect::<Vec<_>>().join("&");
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    }

    pub(crate) fn parsed<T: DeserializeOwned>(&self, answer: &ConsulResponse) -> Result<T> {
        serde_json::from_slice(&answer.body).map_err(|error| self.strange(&one_line(&error.to_string())))
    }

    /// The answer if it is one, else what its status means.
    pub(crate) fn checked(&self, answer: ConsulResponse, right: &str) -> Result<ConsulResponse> {
        let (at, said) = (self.endpoint.to_string(), answer.said());
        let has = |text: &str| says(&answer, text);
        Err(match answer.status {
            200 => return Ok(answer),
            _ if has("ACL not found") => Failure::BadToken { said },
            _ if has(PERMISSION_DENIED) => self.no_right(right, said),
            401 | 403 => self.no_right(right, said),
            400 if has("HTTP request to an HTTPS server") => Failure::TlsOnly { at },
            500 if has("No path to datacenter") => Failure::NoDatacenter { datacenter: self.datacenter.clone().unwrap_or_default(), said },
            500 if NO_SERVERS.iter().any(|text| has(text)) => self.no_servers(&said),
            400 | 413 => self.refused(&said),
            429 | 500..=599 => Failure::Busy { at, said },
            status => Failure::NotConsul { at, why: format!("status {status}: {said}") },
        })
    }

    pub(crate) fn no_right(&self, right: &str, said: String) -> Failure {
        let right = right.to_owned();
        if self.has_token { Failure::NoRight { right, said } } else { Failure::NoToken { right, said } }
    }

    pub(crate) fn refused(&self, said: &str) -> Failure {
        Failure::Refused { at: self.endpoint.to_string(), said: one_line(said) }
    }

    pub(crate) fn no_servers(&self, said: &str) -> Failure {
        Failure::NoServers { at: self.endpoint.to_string(), said: said.to_owned() }
    }

    pub(crate) fn strange(&self, why: &str) -> Failure {
        Failure::NotConsul { at: self.endpoint.to_string(), why: why.to_owned() }
    }
}

pub(crate) fn says(answer: &ConsulResponse, text: &str) -> bool {
    answer.said().contains(text)
}
