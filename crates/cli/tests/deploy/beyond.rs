//! A sidecar beyond loopback, as the systemd drop-in starts it, and Prometheus, as `prometheus/scrape.yaml` configures it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use serde_json::{Value, json};
use shardwise_testkit::servers::program;
use shardwise_testkit::{Authority, Port};

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually, run};
use crate::systemd::beyond_loopback;
use crate::{file, takes, text, yaml};

const TOKEN: &str = "correct-horse-battery-staple";

#[test]
fn promtool_takes_the_scrapes() {
    let place = Place::empty();
    let prometheus = place.path("etc");
    std::fs::create_dir(&prometheus).unwrap();
    let with = |content: &str| {
        // The checker looks for the named files.
        place.write("etc/scrape.yaml", content.replace("/etc/prometheus", &prometheus.display().to_string()));
        let mut check = Command::new(program("promtool").unwrap());
        check.args(["check", "config"]).arg(prometheus.join("scrape.yaml"));
        run(check, b"")
    };
    place.write("etc/shardwise.token", TOKEN);
    place.write("etc/shardwise-ca.pem", std::fs::read(Authority::new().unwrap().file()).unwrap());
    place.write("etc/alerts.yaml", text("prometheus/alerts.yaml"));
    let scrapes = text("prometheus/scrape.yaml");
    let ran = with(&scrapes);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (right, wrong) in [("credentials_file", "credential_file"), ("ca_file", "cafile"), ("/shardwise.token", "/another.token")] {
        let ran = with(&scrapes.replace(right, wrong));
        assert_eq!(ran.code, Some(1), "a mistake is seen: {ran:?}");
    }
}

#[test]
fn the_command_of_the_page_is_one() {
    let page = std::fs::read_to_string(file("README.md")).unwrap();
    let block = page.split("```sh\n").find(|block| block.starts_with("shardwise serve ")).unwrap();
    let command = block.split("```").next().unwrap().replace("\\\n", " ");
    let arguments: Vec<_> = command.split_whitespace().skip(1).map(str::to_owned).collect();
    takes(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let flags = |words: &[String]| words.iter().filter(|word| word.starts_with("--")).cloned().collect::<Vec<_>>();
    assert_eq!(flags(&arguments), flags(&beyond_loopback("0.0.0.0:8087", str::to_owned)), "the page and the drop-in agree");
}

struct Prometheus {
    _process: Process,
    port: Port,
}

impl Prometheus {
    /// Starts it with the scrape configuration of `deploy/`, with these files and this sidecar in it.
    fn start(place: &Place, name: &str, token: &str, target: &str) -> Self {
        let mut config = yaml("prometheus/scrape.yaml").remove(0);
        let files = [("/authorization/credentials_file", token), ("/tls_config/ca_file", "ca.pem")];
        let scrape = &mut config["scrape_configs"][0];
        for (pointer, file) in files {
            *scrape.pointer_mut(pointer).unwrap() = json!(place.path(file));
        }
        scrape["static_configs"] = json!([{"targets": [target]}]);
        scrape["scrape_interval"] = json!("1s");
        let config = json!({"scrape_configs": [scrape]});
        // JSON is YAML too.
        place.write(&format!("{name}.yaml"), config.to_string());
        let port = Port::reserve().unwrap();
        let mut command = Command::new(program("prometheus").unwrap());
        command.arg(format!("--config.file={}", place.path(format!("{name}.yaml")).display()));
        command.arg(format!("--storage.tsdb.path={}", place.path(format!("{name}.data")).display()));
        command.arg(format!("--web.listen-address={}", port.address())).current_dir(place.path("."));
        Self { _process: Process::start(command), port }
    }

    /// The health of its one target, and the last error, after the first scrape.
    fn health(&self) -> (String, String) {
        eventually("Prometheus has asked", PATIENCE, || {
            let targets = get(&self.port, "/api/v1/targets")?;
            let target = &targets["data"]["activeTargets"][0];
            let [health, error] = ["health", "lastError"].map(|field| target[field].as_str().unwrap_or_default().to_owned());
            (health == "up" || health == "down").then_some((health, error))
        })
    }
}

/// The answer, once the port is open.
fn get(port: &Port, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(port.address()).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

#[test]
fn prometheus_sees_a_sidecar_beyond_loopback() {
    let (place, authority) = (Place::of_workers("10s", ""), Authority::new().unwrap());
    let server = authority.server().unwrap();
    place.write("token", format!("{TOKEN}\n"));
    place.write("another.token", "another-horse-battery-staple");
    place.write("ca.pem", std::fs::read(authority.file()).unwrap());
    let credential = |name: &str| match name {
        "token" => place.path("token").display().to_string(),
        "cert" => server.certificate().display().to_string(),
        "key" => server.key().display().to_string(),
        other => panic!("what is {other}?"),
    };
    // All addresses of this machine, as in the drop-in; loopback is one of them.
    let arguments = beyond_loopback("0.0.0.0:0", credential);
    let mut sidecar = Process::start(place.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    let line = sidecar.prints("it listens", |line| line["listening"].is_string());
    assert_eq!(line["tls"], true);
    let target = format!("localhost:{}", line["listening"].as_str().unwrap().rsplit(':').next().unwrap());
    let [right, wrong] = ["token", "another.token"].map(|token| Prometheus::start(&place, token, token, &target));
    assert_eq!(right.health(), ("up".to_owned(), String::new()));
    let (health, error) = wrong.health();
    assert!(health == "down" && error.contains("401"), "{health}: {error}");
}
