//! Reading the instances of a service from its servers, as they are now.

use std::time::Duration;

use reqwest::Method;
use shardwise_core::Moment;

use crate::api::AclPermission;
use crate::client::{Client, ConsulResponse};
use crate::error::Result;
use crate::names::{literal, segment};
use crate::wire::ServiceEntry;

/// How old what a server knows may be. A `consistent` answer is of now.
const CONTACT_MARGIN: Duration = Duration::from_millis(100);

/// A list of instances that the servers answered.
#[derive(Debug)]
pub(crate) struct InstanceList {
    /// Before the request.
    pub(crate) started: Moment,
    /// Consul's index of the service; at least 1.
    pub(crate) index: u64,
    pub(crate) entries: Vec<ServiceEntry>,
}

/// Which instances of a service are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InstanceFilter<'a> {
    All,
    /// Only the index is wanted.
    IndexOnly,
    /// Those that say of themselves that they have this check.
    Check(&'a str),
    /// The same, and that this was the last change of what they say.
    Change(&'a str, u64),
    /// Those of that service id, or that say they are that instance.
    Instance(&'a str),
}

impl Client {
    /// The passing instances of a service, as its servers' leader knows them now. With `index` and `wait` it answers once the index has
    /// changed or the time is over.
    pub(crate) async fn passing(&self, service: &str, which: InstanceFilter<'_>, wait: Option<(u64, Duration)>) -> Result<InstanceList> {
        let filter = match which {
            InstanceFilter::All => None,
            InstanceFilter::IndexOnly => Some("Service.ID == \"\"".to_owned()),
            InstanceFilter::Check(check) => Some(format!("Service.Meta.shardwise_check == {}", literal(check))),
            InstanceFilter::Change(check, change) => {
                Some(format!("Service.Meta.shardwise_check == {} and Service.Meta.shardwise_change == \"{change}\"", literal(check)))
            }
            InstanceFilter::Instance(id) => Some(format!("Service.ID == {0} or Service.Meta.shardwise_id == {0}", literal(id))),
        };
        let filter = filter.map(|filter| format!("filter={}", segment(&filter)));
        let waiting = wait.map(|(index, wait)| format!("index={index}&wait={}ms", wait.as_millis()));
        let parts: Vec<_> = ["passing", "consistent"].into_iter().chain(filter.as_deref()).chain(waiting.as_deref()).collect();
        let target = self.at(&format!("/v1/health/service/{}", segment(service)), &parts);
        self.list(service, &target, wait.map(|(_, wait)| wait)).await
    }

    /// Instances that say of themselves that they have this check, whether they pass or not, in whatever datacenter the agent is.
    pub(crate) async fn registered(&self, service: &str, check: &str) -> Result<InstanceList> {
        let filter = segment(&format!("Service.Meta.shardwise_check == {}", literal(check)));
        self.list(service, &format!("/v1/health/service/{}?consistent&filter={filter}", segment(service)), None).await
    }

    async fn list(&self, service: &str, target: &str, wait: Option<Duration>) -> Result<InstanceList> {
        let what = "reading the group";
        let started = self.clock.now();
        let answer = match wait {
            Some(wait) => self.wait(what, target, wait).await?,
            None => self.call(what, Method::GET, target, None).await?,
        };
        let answer = self.checked(answer, &AclPermission::ReadService(service))?;
        let index = self.index_of(&answer, &AclPermission::ReadNodes)?;
        Ok(InstanceList { started, index, entries: self.parsed(&answer)? })
    }

    /// The index of an answer that is of now; `right` is what lacks if the servers say that they have left something out.
    pub(crate) fn index_of(&self, answer: &ConsulResponse, right: &AclPermission<'_>) -> Result<u64> {
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
}
