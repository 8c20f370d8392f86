//! The commands of compose.yaml, with its own settings and SQL, on the tests' servers.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shardwise_testkit::{Nats, NatsOptions, Postgres};
use tokio::runtime::Runtime;

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually};
use crate::{strings, text, yaml};

/// The difference from compose's network: the servers' addresses.
struct Network(Vec<(&'static str, String)>);

impl Network {
    fn command(&self, place: &Place, service: &Value) -> Command {
        let mut arguments = strings(&service["command"]);
        if let Some(listen) = arguments.iter_mut().find(|argument| argument.starts_with("0.0.0.0:")) {
            *listen = "127.0.0.1:0";
        }
        let mut command = place.command(&arguments);
        let variables = service["environment"].as_object().into_iter().flatten();
        command.envs(variables.map(|(name, value)| (name, value.as_str().unwrap())));
        command.envs(self.0.iter().map(|(name, value)| (name, value)));
        command
    }
}

#[test]
fn the_demo_of_compose_publishes_what_its_writer_writes() {
    let runtime = Runtime::new().unwrap();
    let (nats, database) = runtime.block_on(async {
        let nats = Nats::start(NatsOptions::default()).await.unwrap();
        (nats, Postgres::shared().await.unwrap().database().await.unwrap())
    });
    let place = Place::with_settings(&text("compose/settings.toml"));
    place.write("password", text("compose/postgres.password"));
    let network = Network(vec![
        ("SHARDWISE__OUTBOX__ORDERS__STORE", database.url()),
        ("SHARDWISE__OUTBOX__ORDERS__STORE_PASSWORD_FILE", "password".into()),
        ("SHARDWISE__OUTBOX__ORDERS__SINK", format!("nats://{}", nats.socket_addr())),
    ]);
    let compose = &yaml("compose/compose.yaml")[0];
    let init = crate::run(network.command(&place, &compose["services"]["init"]), b"");
    assert_eq!(init.code, Some(0), "{init:?}");

    let mut workers = ["worker-1", "worker-2", "worker-3"].map(|name| Process::start(network.command(&place, &compose["services"][name])));
    let write = || runtime.block_on(database.execute(&text("compose/write.sql"))).unwrap();
    let status = || crate::run(network.command(&place, &json!({"command": ["outbox", "status", "--json"]})), b"").json();
    let members = json!({"command": ["members", "--policy", "publishers", "--json"]});
    eventually("they have met in the database", PATIENCE, || {
        let ran = crate::run(network.command(&place, &members), b"");
        let group: Value = serde_json::from_slice(&ran.out).ok()?;
        (group["members"].as_array()?.len() == 3).then_some(())
    });
    write();
    write();
    eventually("everything is delivered", PATIENCE, || (status()["pending"] == 0).then_some(()));
    for worker in &workers {
        worker.signal(Signal::SIGTERM);
    }
    let delivered = workers.iter_mut().map(|worker| {
        let ran = worker.ends("after SIGTERM");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let line = ran.err.lines().find_map(|line| line.strip_prefix("stopped: ")).unwrap_or_else(|| panic!("{ran:?}")).to_owned();
        line.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(delivered.sum::<u64>(), 200);
}
