//! Our workers beside a Python fleet's in one service of a real Consul: every key has the one owner that the real uhashring names.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use shardwise::{ServiceState, Settings, ShardingFactory, ShardingService};
use shardwise_testkit::{Consul, python_with};
use tokio::runtime::Runtime;

use crate::meeting::{GROUP, alone, runtime, until};

const TTL: Duration = Duration::from_secs(3);
/// From a change in Consul until our workers work by it.
const IN_FORCE_MAX: Duration = Duration::from_secs(20);
const KEYS: usize = 4_000;

#[test]
fn with_a_python_fleet_each_key_has_the_owner_that_uhashring_names() {
    let _alone = alone();
    let runtime = runtime("other-fleet");
    let _inside = runtime.enter();
    let consul = runtime.block_on(Consul::single()).unwrap();
    let fleet = Fleet { ours: ["ours-1", "ours-2"].map(|id| worker(&consul, id)), keys: keys(), consul, runtime };
    for id in ["python-1", "python-2"] {
        let check = json!({ "CheckID": format!("{id} lives"), "TTL": "10m", "Status": "passing" });
        fleet.put("/v1/agent/service/register", Some(&json!({ "ID": id, "Name": GROUP, "Check": check })));
    }
    for service in &fleet.ours {
        fleet.runtime.block_on(service.register_self()).unwrap();
    }

    let all = fleet.shares_keys_among(&["ours-1", "ours-2", "python-1", "python-2"]);
    fleet.put("/v1/agent/check/fail/python-1%20lives", None);
    let without = fleet.shares_keys_among(&["ours-1", "ours-2", "python-2"]);
    let moved: Vec<_> = all.iter().zip(&without).filter(|(before, after)| before != after).collect();
    assert!(
        moved.len() > KEYS / 8 && moved.iter().all(|(before, _)| **before == "python-1"),
        "only its keys move, {} of them",
        moved.len()
    );
    assert!(moved.iter().any(|(_, after)| after.starts_with("ours")), "some of them are ours");

    fleet.put("/v1/agent/check/pass/python-1%20lives", None);
    assert_eq!(fleet.shares_keys_among(&["ours-1", "ours-2", "python-1", "python-2"]), all);
    fleet.runtime.block_on(fleet.ours[1].deregister_self()).unwrap();
    fleet.shares_keys_among(&["ours-1", "python-1", "python-2"]);
}

/// Plain and unusual ones.
fn keys() -> Vec<String> {
    let texts = ["", " ", "é", "e\u{301}", "👩🏽\u{200d}🚀", "\"quoted\" \\", "שלום"].map(str::to_owned);
    texts.into_iter().chain((0..).map(|n| format!("tenant-{n}"))).take(KEYS).collect()
}

fn worker(consul: &Consul, id: &str) -> ShardingService {
    let table = "[default.resilience.sharding";
    let settings = Settings::from_toml_str(&format!(
        "{table}.policies.workers]\ngroup_name = \"{GROUP}\"\nplacement = \"uhashring\"\ndrain_timeout = \"0s\"\n\
         {table}.instance]\nid = \"{id}\"\n{table}.discovery]\nbackend = \"consul\"\nttl = \"{}ms\"\n\
         {table}.discovery.consul]\naddress = \"{}\"\n",
        TTL.as_millis(),
        consul.address()
    ));
    ShardingFactory::from_settings(settings.unwrap()).unwrap().create("workers").unwrap()
}

struct Fleet {
    ours: [ShardingService; 2],
    keys: Vec<String>,
    consul: Consul,
    runtime: Runtime,
}

impl Fleet {
    fn put(&self, path: &str, body: Option<&Value>) {
        self.runtime.block_on(self.consul.api("PUT", path, body)).unwrap();
    }

    /// Waits until the group is these, in order, and each key has the one owner that Python names, whom it gives back.
    fn shares_keys_among<'a>(&self, ids: &[&'a str]) -> Vec<&'a str> {
        let owners: Vec<_> = python(ids, &self.keys).into_iter().map(|at| ids[at]).collect();
        until(&format!("{ids:?} share the keys"), IN_FORCE_MAX, || {
            let passing = self.passing();
            if passing != ids {
                return Err(format!("Consul shows {passing:?}"));
            }
            let ours: Vec<_> = self.ours.iter().filter(|service| ids.contains(&service.instance_id().as_str())).collect();
            for service in &ours {
                let (id, view) = (service.instance_id(), service.members());
                let mut seen: Vec<_> = view.members().iter().map(|member| &member.instance_id).chain(view.foreign()).collect();
                seen.sort_unstable();
                if service.state() != ServiceState::Active || !seen.iter().map(|id| id.as_str()).eq(ids.iter().copied()) {
                    return Err(format!("{id} is {} and sees {seen:?}", service.state()));
                }
            }
            for (key, owner) in self.keys.iter().zip(&owners) {
                let holders: Vec<_> = self.ours.iter().filter(|service| service.owns(key)).map(ShardingService::instance_id).collect();
                let expected: Vec<_> = ours.iter().map(|service| service.instance_id()).filter(|id| id.as_str() == *owner).collect();
                if holders != expected {
                    return Err(format!("{key:?} is {owner}'s, and {holders:?} of ours hold it"));
                }
            }
            Ok(())
        });
        owners
    }

    /// Whom a fleet that asks Consul finds, in order.
    fn passing(&self) -> Vec<String> {
        let found = self.runtime.block_on(self.consul.api("GET", &format!("/v1/health/service/{GROUP}?passing"), None)).unwrap();
        let id = |entry: &Value| entry["Service"]["ID"].as_str().unwrap().to_owned();
        let mut ids: Vec<_> = found.as_array().unwrap().iter().map(id).collect();
        ids.sort_unstable();
        ids
    }
}

/// The positions of the keys' owners among the members, as the real package says.
fn python(ids: &[&str], keys: &[String]) -> Vec<usize> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/other_fleets.py");
    let mut asked = Command::new(python_with(&["uhashring==2.4"]).unwrap());
    let mut child = asked.args(["-B", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let members: Vec<_> = ids.iter().map(|id| json!([id, 1])).collect();
    writeln!(child.stdin.take().unwrap(), "{}", json!({"members": members, "keys": keys})).unwrap();
    let output = child.wait_with_output().unwrap();
    let [by_uhashring, _]: [Vec<usize>; 2] = serde_json::from_slice(&output.stdout).unwrap();
    by_uhashring
}
