//! Two pods of the sidecar's manifest, as processes in network namespaces: with the addresses of pods, the arguments and settings of the
//! manifest, and the secret that the commands of the page make. Only the images and the network policy are not there.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use serde_json::{Value, json};
use shardwise_testkit::servers::program;
use shardwise_testkit::{Etcd, Pod, PodNetwork};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually};
use crate::kubernetes::{Manifest, secret};
use crate::{python, run, strings};

const TEST: &str = "pods::a_sidecar_reaches_the_worker_of_another_pod";
/// The address of this process, where the manifest expects etcd.
const SERVICES: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
const ETCD: &str = "etcd.default.svc";
const SECRET: &str = "/var/run/secrets/shardwise";

/// A worker in another language: it answers with what it has received.
const WORKER: &str = r#"
import http.server, sys

class Worker(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = f"{sys.argv[1]}: {self.command} {self.path} {self.headers.get('shardwise-to')}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 8081), Worker)
print('{"listening": true}', flush=True)
server.serve_forever()
"#;

/// A client, as a worker has one, or, without a file of authorities, the kubelet.
const CLIENT: &str = r#"
import json, ssl, sys, urllib.error, urllib.request

method, url, token, authorities = sys.argv[1:]
headers = {"content-type": "application/json"}
if token:
    headers["authorization"] = "Bearer " + open(token).read().strip()
context = ssl.create_default_context(cafile=authorities) if authorities else ssl._create_unverified_context()
request = urllib.request.Request(url, method=method, headers=headers, data=b"[]" if method == "POST" else None)
# No proxy that a variable names can reach the pods.
handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
try:
    answer = urllib.request.build_opener(*handlers).open(request, timeout=60)
except urllib.error.HTTPError as error:
    answer = error
except urllib.error.URLError as error:
    sys.exit(f"{url}: {error.reason}")
print(json.dumps({"status": answer.getcode(), "by": answer.headers.get("shardwise-instance"), "body": answer.read().decode()}))
"#;

/// One pod of the manifest, with its two containers.
struct Replica {
    id: String,
    address: Ipv4Addr,
    worker: Option<Process>,
    _sidecar: Process,
    // Last: its processes end before it.
    pod: Pod,
}

impl Replica {
    fn start(network: &PodNetwork, place: &Place, manifest: &Manifest, number: u8) -> Self {
        let (id, address) = (format!("worker-{number}"), Ipv4Addr::new(10, 244, number, 2));
        let pod = network.pod(address).unwrap();
        let mut sidecar = Process::start(pod.command(&Self::sidecar(place, manifest, &id, address)));
        sidecar.prints("it listens", |line| line["listening"] == "0.0.0.0:8087");
        let mut worker = Process::start(pod.command(python().args(["-c", WORKER, &id])));
        worker.prints("it listens", |line| line["listening"] == true);
        Self { id, address, worker: Some(worker), _sidecar: sidecar, pod }
    }

    /// The sidecar's command: the arguments and the environment of its container.
    fn sidecar(place: &Place, manifest: &Manifest, id: &str, address: Ipv4Addr) -> Command {
        let container = manifest.ours();
        let arguments: Vec<_> = strings(&container["args"]).into_iter().map(|argument| mounted(place, argument)).collect();
        let mut command = place.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        for variable in container["env"].as_array().unwrap() {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.name") => id.to_owned(),
                Some("status.podIP") => address.to_string(),
                _ => variable["value"].as_str().unwrap().to_owned(),
            };
            command.env(variable["name"].as_str().unwrap(), value);
        }
        command
    }

    /// The answer of its own sidecar to a worker that also has the operator's token.
    fn asks(&self, place: &Place, manifest: &Manifest, method: &str, rest: &str) -> Value {
        self.asks_with(place, manifest, &mounted(place, &format!("{SECRET}/token")), method, rest)
    }

    /// The answer to a worker that has this token.
    fn asks_with(&self, place: &Place, manifest: &Manifest, token: &str, method: &str, rest: &str) -> Value {
        let url = format!("{}/v1/policies/my_custom_workers/{rest}", of_worker(place, manifest, "SIDECAR_URL"));
        let mut client = python();
        client.args(["-c", CLIENT, method, &url, token, &of_worker(place, manifest, "SIDECAR_CA_FILE")]);
        let ran = run(self.pod.command(&client), b"");
        assert_eq!(ran.code, Some(0), "{method} {rest}: {ran:?}");
        ran.json()
    }
}

/// The value of a variable in the worker's container.
fn of_worker(place: &Place, manifest: &Manifest, name: &str) -> String {
    let worker = manifest.containers().into_iter().find(|container| container["name"] == "worker").unwrap();
    let variable = worker["env"].as_array().unwrap().iter().find(|variable| variable["name"] == name).unwrap();
    mounted(place, variable["value"].as_str().unwrap())
}

/// The value with the folder of the secret as it is here.
fn mounted(place: &Place, value: &str) -> String {
    value.replace(SECRET, &place.path("secret").display().to_string())
}

/// Leads connections on to a server that listens on this machine's loopback only.
async fn leads(listener: TcpListener, to: SocketAddr) {
    while let Ok((mut from, _)) = listener.accept().await {
        tokio::spawn(async move {
            if let Ok(mut server) = TcpStream::connect(to).await {
                let _ = tokio::io::copy_bidirectional(&mut from, &mut server).await;
            }
        });
    }
}

#[test]
fn a_sidecar_reaches_the_worker_of_another_pod() {
    // Before the network is gone: what these fetch is kept.
    let manifest = Manifest::sidecar();
    program("etcd").unwrap();
    let Some(network) = PodNetwork::of_test(TEST, SERVICES, &[ETCD]).unwrap() else { return };

    let place = Place::with_settings(manifest.settings());
    std::fs::create_dir(place.path("secret")).unwrap();
    let mut make = Command::new("sh");
    make.args(["-ec", &secret().0]).current_dir(place.path("secret"));
    let made = run(make, b"");
    assert_eq!(made.code, Some(0), "{made:?}");

    let runtime = Runtime::new().unwrap();
    let etcd = runtime.block_on(Etcd::single()).unwrap();
    let listener = runtime.block_on(TcpListener::bind((SERVICES, 2_379))).unwrap();
    runtime.spawn(leads(listener, etcd.socket_addr()));
    let mut replicas = [1, 2].map(|number| Replica::start(&network, &place, &manifest, number));
    let [one, two] = &replicas;
    for (asking, asked) in [(one, two), (two, one)] {
        eventually("the other pod is seen", PATIENCE, || {
            let answer = asking.asks(&place, &manifest, "GET", &format!("instances/{}/shardwise/status", asked.id));
            (answer["status"] == 200).then_some(())
        });
        let id = &asked.id;
        for (method, rest, heard) in [
            ("GET", format!("instances/{id}/cache/size?of=all"), "GET /requests/cache/size?of=all instance"),
            ("POST", format!("instances/{id}/cache/flush"), "POST /requests/cache/flush instance"),
            ("POST", format!("any/cache/flush?instance={id}"), "POST /requests/cache/flush any"),
        ] {
            let answer = asking.asks(&place, &manifest, method, &rest);
            assert_eq!(answer, json!({"status": 200, "by": id, "body": format!("{id}: {heard}")}), "{rest}");
        }
    }

    let token = of_worker(&place, &manifest, "SIDECAR_TOKEN_FILE");
    for (rest, status) in [("owned", 200), ("any/cache/flush", 403)] {
        let answer = replicas[0].asks_with(&place, &manifest, &token, "POST", rest);
        assert_eq!(answer["status"], status, "{rest} with the token that the manifest mounts: {answer}");
    }

    // The node's own requests: without a token, and without a certificate that they could verify.
    for replica in &replicas {
        for path in ["livez", "readyz"] {
            let mut kubelet = python();
            kubelet.args(["-c", CLIENT, "GET", &format!("https://{}:8087/{path}", replica.address), "", ""]);
            let ran = run(kubelet, b"");
            assert!(ran.code == Some(0) && ran.json()["status"] == 200, "{path}: {ran:?}");
        }
    }

    // A worker that is gone is passed over, from both pods.
    drop(replicas[1].worker.take());
    for replica in &replicas {
        for _ in 0..4 {
            let answer = replica.asks(&place, &manifest, "POST", "any/cache/flush");
            assert_eq!((&answer["status"], &answer["by"]), (&json!(200), &json!("worker-1")), "{answer}");
        }
    }
}
