//! The endpoints of Consul's HTTP API that are used, each with its answer and the right it needs. Reading a group is in `health`,
//! keys are in `keys` and sessions in `sessions`; Consul's paths appear in no other module.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use shardwise_discovery::one_line;

use crate::client::{Client, ConsulResponse};
use crate::error::{Failure, Result};
use crate::names::{literal, segment};
use crate::wire::{AgentCheck, Service};

/// The answer of an agent that has lost its servers, or of a server without a leader.
const NO_SERVERS: [&str; 6] =
    ["No cluster leader", "No known Consul servers", "leadership lost", "not the leader", "failed to get conn", "stream closed"];

/// The rights that Consul may find missing.
#[derive(Debug, Clone)]
pub(crate) enum AclPermission<'a> {
    Service(&'a str),
    ReadService(&'a str),
    ReadNodes,
    Key,
    ReadKey,
    Session,
}

impl std::fmt::Display for AclPermission<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Service(name) => write!(f, "service:write for {name:?}"),
            Self::ReadService(name) => write!(f, "service:read for {name:?}"),
            Self::ReadNodes => f.write_str("node:read (node_prefix \"\")"),
            Self::Key => f.write_str("key:write (key_prefix \"shardwise/\")"),
            Self::ReadKey => f.write_str("key:read (key_prefix \"shardwise/\")"),
            Self::Session => f.write_str("session:write (session_prefix \"\")"),
        }
    }
}

impl Client {
    /// Registers with the agent, in the place of whatever has the same service id there. `afresh` also takes the place of its checks.
    pub(crate) async fn register_service(&self, service: &str, definition: String, afresh: bool) -> Result<()> {
        let target = if afresh { "/v1/agent/service/register?replace-existing-checks=true" } else { "/v1/agent/service/register" };
        let answer = self.call("registering", Method::PUT, target, Some(definition)).await?;
        self.checked(answer, &AclPermission::Service(service)).map(drop)
    }

    /// Takes a service off the agent.
    pub(crate) async fn deregister_service(&self, service: &str, service_id: &str) -> Result<()> {
        let target = format!("/v1/agent/service/deregister/{}", segment(service_id));
        let answer = self.call("deregistering", Method::PUT, &target, None).await?;
        // It is gone already.
        if answer.status == 404 || answer.status == 500 && says(&answer, "nknown service") {
            return Ok(());
        }
        self.checked(answer, &AclPermission::Service(service)).map(drop)
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
        self.checked(answer, &AclPermission::Service(service)).map(|_| true)
    }

    /// The services on this agent that have this id in either case, or say that they are this instance.
    pub(crate) async fn agent_services(&self, id: &str) -> Result<Vec<Service>> {
        let filter = format!("ID matches {} or Meta.shardwise_id == {}", crate::names::any_case(id), literal(id));
        let target = format!("/v1/agent/services?filter={}", segment(&filter));
        let answer = self.call("reading the agent's services", Method::GET, &target, None).await?;
        let found: HashMap<String, Service> = self.parsed(&self.checked(answer, &AclPermission::ReadService(id))?)?;
        Ok(found.into_values().collect())
    }

    /// A check, if this agent has it.
    pub(crate) async fn agent_check(&self, check: &str) -> Result<Option<AgentCheck>> {
        let filter = format!("CheckID == {}", literal(check));
        let target = format!("/v1/agent/checks?filter={}", segment(&filter));
        let answer = self.call("reading the agent's checks", Method::GET, &target, None).await?;
        let found: HashMap<String, AgentCheck> = self.parsed(&self.checked(answer, &AclPermission::ReadService(""))?)?;
        Ok(found.into_values().next())
    }

    /// Asks what an empty list means: no members, or a token that may not see them. Consul's answer is the same for both.
    pub(crate) async fn may_see(&self, service: &str) -> Result<()> {
        let said = || "the servers show no members".to_owned();
        match self.may_read(&[("service", service), ("node", "")]).await?.as_deref() {
            Some([false, ..]) => Err(self.no_right(&AclPermission::ReadService(service), said())),
            Some([true, true]) => Ok(()),
            Some(_) => Err(self.no_right(&AclPermission::ReadNodes, said())),
            None => self.sees_a_node().await,
        }
    }

    /// Asks what an empty list of keys means: no keys, or a token that may not see them. Consul's answer is the same for both.
    pub(crate) async fn may_see_keys(&self, prefix: &str) -> Result<()> {
        match self.may_read(&[("key", prefix)]).await?.as_deref() {
            Some([false]) => Err(self.no_right(&AclPermission::ReadKey, "the servers show no claims".to_owned())),
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
            Some(_) => return Err(self.no_right(&AclPermission::ReadNodes, "without it, members on other nodes stay invisible".to_owned())),
            None => self.sees_a_node().await?,
        }
        self.sees_nodes.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Every cluster has nodes, so a token that sees none may see none. If that cannot be asked, the token is assumed to see some.
    async fn sees_a_node(&self) -> Result<()> {
        let answer = self.call("listing nodes", Method::GET, &self.at("/v1/catalog/nodes", &["consistent"]), None).await?;
        let nodes: Vec<serde::de::IgnoredAny> = self.parsed(&self.checked(answer, &AclPermission::ReadNodes)?)?;
        if nodes.is_empty() { Err(self.no_right(&AclPermission::ReadNodes, "the servers show no members".to_owned())) } else { Ok(()) }
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
                let rights: Vec<AuthorizeResult> = self.parsed(&self.checked(answer, &AclPermission::ReadNodes)?)?;
                Ok(Some(rights.iter().map(|right| right.allow).collect()))
            }
        }
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
    pub(crate) fn checked(&self, answer: ConsulResponse, right: &AclPermission<'_>) -> Result<ConsulResponse> {
        let (at, said) = (self.endpoint.to_string(), answer.said());
        let has = |text: &str| says(&answer, text);
        Err(match answer.status {
            200 => return Ok(answer),
            _ if has("ACL not found") => Failure::BadToken { said },
            _ if has("ermission denied") => self.no_right(right, said),
            401 | 403 => self.no_right(right, said),
            400 if has("HTTP request to an HTTPS server") => Failure::TlsOnly { at },
            500 if has("No path to datacenter") => Failure::NoDatacenter { datacenter: self.datacenter.clone().unwrap_or_default(), said },
            500 if NO_SERVERS.iter().any(|text| has(text)) => self.no_servers(&said),
            400 | 413 => self.refused(&said),
            429 | 500..=599 => Failure::Busy { at, said },
            status => Failure::NotConsul { at, why: format!("status {status}: {said}") },
        })
    }

    pub(crate) fn no_right(&self, right: &AclPermission<'_>, said: String) -> Failure {
        let right = right.to_string();
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
