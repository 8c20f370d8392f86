//! Publishers of the outbox manifests, with their arguments and settings: they need their database alone, and of it the rights that the
//! pages list.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use nix::sys::signal::Signal;
use serde_json::Value;
use shardwise_testkit::{Authority, Database, Nats, NatsOptions, Port, Postgres, PostgresOptions};
use tokio::runtime::Runtime;

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually, run};
use crate::kubernetes::Manifest;
use crate::{file, strings, text, with_secrets};

const ROLE: &str = "publisher";
const PASSWORD: &str = "correct-horse-battery-staple";
/// The pod's address of the downward API. The kubelet's probes name it.
const POD: &str = "10.1.2.3";

fn page(name: &str) -> String {
    std::fs::read_to_string(file(&format!("../{name}"))).unwrap()
}

/// The grants of the page for its role, as grants to ours.
fn grants(name: &str, role: &str) -> Vec<String> {
    let end = format!(" TO {role};");
    let page = page(name);
    let lines = page.lines().filter_map(|line| line.strip_prefix("GRANT ")?.strip_suffix(&end));
    lines.map(|granted| format!("GRANT {granted} TO {ROLE}")).collect()
}

/// A manifest's outbox in a database of its own.
struct Outbox {
    place: Place,
    manifest: Manifest,
    database: Database,
    sink: String,
}

impl Outbox {
    fn new(runtime: &Runtime, server: &Arc<Postgres>, nats: &Nats, manifest: Manifest) -> Self {
        let place = Place::empty();
        place.write("settings.toml", with_secrets(&place, manifest.settings(), PASSWORD));
        let database = runtime.block_on(server.database()).unwrap();
        Self { place, manifest, database, sink: format!("nats://{}", nats.socket_addr()) }
    }

    /// Runs the commands of the page that make the tables, as an owner, and grants what the pages list.
    fn prepare(&self, runtime: &Runtime) {
        let page = page("docs/howto/kubernetes.md");
        let block = page.split("```sh\n").find(|block| block.contains("\nshardwise outbox init\n")).unwrap();
        let mut init = self.place.command(&["outbox", "init"]);
        for variable in block.lines().filter_map(|line| line.strip_prefix("export ")) {
            let (name, value) = variable.split_once('=').unwrap();
            let is_store = name.ends_with("__STORE");
            assert!(!is_store || value.contains("sslmode="), "{variable}");
            init.env(name, if is_store { self.database.url() } else { value.to_owned() });
        }
        self.place.write("owner.password", "the server asks its owner for none");
        let ran = run(init, b"");
        assert!(ran.code == Some(0) && ran.text().contains("its publishers meet there"), "{ran:?}");
        let granted = [grants("crates/outbox/postgres.md", ROLE), grants("backends/postgres/docs.md", "worker")];
        assert!(granted.iter().all(|grants| grants.len() > 5), "{granted:?}");
        runtime.block_on(self.database.execute(&granted.concat().join("; "))).unwrap();
    }

    /// The command with the environment of a pod of that name. Only the servers' addresses differ, and no stream has been made.
    fn in_pod(&self, name: &str, arguments: &[&str]) -> std::process::Command {
        let mut command = self.place.command(arguments);
        for variable in self.manifest.ours()["env"].as_array().unwrap() {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.name") => name,
                Some("status.podIP") => POD,
                _ => variable["value"].as_str().unwrap(),
            };
            command.env(variable["name"].as_str().unwrap(), value);
        }
        let written = self.manifest.settings().lines().find_map(|line| line.strip_prefix("store = ")).unwrap();
        let parameters = written.trim_matches('"').split_once('?').unwrap().1;
        let store = self.database.url().replacen("postgres@", &format!("{ROLE}@"), 1);
        command.env("SHARDWISE__OUTBOX__ORDERS__STORE", format!("{store}?{parameters}"));
        if self.keeps_places() {
            // Longer than a busy machine may pause between the stop and the check.
            command.env("SHARDWISE__RESILIENCE__SHARDING__POLICIES__PUBLISHERS__REJOIN_GRACE", "10m");
        }
        command.env("SHARDWISE__OUTBOX__ORDERS__SINK", &self.sink).env("SHARDWISE__OUTBOX__ORDERS__SINK_CREATE", "true");
        command
    }

    fn keeps_places(&self) -> bool {
        self.manifest.settings().contains("rejoin_grace")
    }

    fn start(&self, name: &str) -> (Process, Port) {
        let port = Port::reserve().unwrap();
        let here = port.address().to_string();
        let arguments = strings(&self.manifest.ours()["args"]);
        let arguments: Vec<_> = arguments.iter().map(|argument| if argument.starts_with("0.0.0.0:") { &here } else { *argument }).collect();
        (Process::start(self.in_pod(name, &arguments)), port)
    }

    fn shows(&self, arguments: &[&str]) -> Option<Value> {
        serde_json::from_slice(&run(self.in_pod("a-look", arguments), b"").out).ok()
    }

    /// The names of the pods in the group, with their states.
    fn members(&self) -> Option<Vec<(String, String)>> {
        let group = self.shows(&["members", "--policy", "publishers", "--json"])?;
        let field = |member: &Value, name: &str| member[name].as_str().map(str::to_owned);
        group["members"].as_array()?.iter().map(|member| Some((field(member, "instance_id")?, field(member, "state")?))).collect()
    }
}

/// The status of the answer to a probe of the kubelet, which names the pod's address.
fn probe(port: &Port, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(port.address()).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {POD}:9600\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn publishers_of_the_manifests_need_their_database_and_the_rights_of_the_pages() {
    let (runtime, authority) = (Runtime::new().unwrap(), Authority::new().unwrap());
    let options = PostgresOptions::default().with_tls(&authority.server().unwrap());
    let options = options.with_rules(&format!("hostssl all {ROLE} 127.0.0.1/32 scram-sha-256"));
    let server = runtime.block_on(Postgres::start(options)).unwrap();
    runtime.block_on(server.execute(&format!("CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'"))).unwrap();
    for manifest in Manifest::publishers() {
        let name = manifest.name;
        let nats = runtime.block_on(Nats::start(NatsOptions::default())).unwrap();
        let outbox = Outbox::new(&runtime, &server, &nats, manifest);
        outbox.prepare(&runtime);
        let mut pods = ["pod-0", "pod-1"].map(|pod| (outbox.start(pod), pod));
        eventually("both have joined", PATIENCE, || {
            let active = outbox.members()?.into_iter().filter(|(_, state)| state == "active").count();
            (active == pods.len()).then_some(())
        });
        for ((_, port), pod) in &pods {
            for path in ["/livez", "/readyz"] {
                eventually(&format!("{name}: {pod} answers {path}"), PATIENCE, || (probe(port, path) == Some(200)).then_some(()));
            }
        }
        runtime.block_on(outbox.database.execute(&text("compose/write.sql"))).unwrap();
        let pending = || outbox.shows(&["outbox", "status", "--json"])?["pending"].as_u64();
        eventually("everything is delivered", PATIENCE, || (pending() == Some(0)).then_some(()));

        let stops_well = |process: &mut Process| {
            process.signal(Signal::SIGTERM);
            let ran = process.ends("after SIGTERM");
            assert!(ran.code == Some(0) && !ran.err.contains("GRANT") && !ran.err.contains("permission"), "{name}: {ran:?}");
        };
        let [((first, _), _), ((second, _), _)] = &mut pods;
        stops_well(first);
        let left: &[_] = if outbox.keeps_places() { &[("pod-0", "away"), ("pod-1", "active")] } else { &[("pod-1", "active")] };
        eventually(&format!("{name}: the group is {left:?}"), PATIENCE, || {
            let members = outbox.members()?;
            let members: BTreeSet<_> = members.iter().map(|(id, state)| (id.as_str(), state.as_str())).collect();
            members.iter().eq(left).then_some(())
        });
        stops_well(second);
    }
}
