//! `deploy/kubernetes`: checked against Kubernetes' own schemas, and against the program.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Place, Ran, run};
use crate::{SECRETS, file, is_pinned, listens_at, probes, python, settings, stops_within, strings, takes, ttl, yaml};

const FILES: [&str; 3] = ["outbox-deployment.yaml", "outbox-statefulset.yaml", "sidecar-deployment.yaml"];
const INSTANCE: &str = "SHARDWISE__RESILIENCE__SHARDING__INSTANCE__";

pub(crate) struct Manifest {
    pub(crate) name: &'static str,
    documents: Vec<Value>,
}

impl Manifest {
    fn all() -> Vec<Self> {
        FILES.into_iter().map(Self::read).collect()
    }

    fn read(name: &'static str) -> Self {
        Self { name, documents: yaml(&format!("kubernetes/{name}")) }
    }

    /// Those of publishers.
    pub(crate) fn publishers() -> Vec<Self> {
        FILES.into_iter().filter(|name| name.starts_with("outbox-")).map(Self::read).collect()
    }

    /// That of a worker with a sidecar.
    pub(crate) fn sidecar() -> Self {
        Self::read("sidecar-deployment.yaml")
    }

    pub(crate) fn settings(&self) -> &str {
        self.of_kind("ConfigMap").unwrap()["data"]["settings.toml"].as_str().unwrap()
    }

    fn of_kind(&self, kind: &str) -> Option<&Value> {
        self.documents.iter().find(|document| document["kind"] == kind)
    }

    fn workload(&self) -> &Value {
        self.of_kind("Deployment").or_else(|| self.of_kind("StatefulSet")).unwrap()
    }

    pub(crate) fn pod(&self) -> &Value {
        &self.workload()["spec"]["template"]["spec"]
    }

    pub(crate) fn containers(&self) -> Vec<&Value> {
        ["containers", "initContainers"].iter().filter_map(|name| self.pod()[name].as_array()).flatten().collect()
    }

    /// The container that runs our program.
    pub(crate) fn ours(&self) -> &Value {
        self.containers().into_iter().find(|container| container["image"].as_str().unwrap().starts_with("shardwise:")).unwrap()
    }
}

/// Validates the files with Kubernetes' schemas of that version; unknown fields are errors.
fn validated(version: &str, files: &[PathBuf]) -> Ran {
    let mut validate = python();
    validate.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", version]).args(files);
    run(validate, b"")
}

#[test]
fn kubernetes_schemas_take_them() {
    let files = FILES.map(|name| file(&format!("kubernetes/{name}")));
    let documents: usize = Manifest::all().iter().map(|manifest| manifest.documents.len()).sum();
    for version in ["1.31", "1.37"] {
        let ran = validated(version, &files);
        let passed = (ran.text() + &ran.err).matches(" passed for resource ").count();
        assert_eq!((ran.code, passed), (Some(0), documents), "{version}: {ran:?}");
    }
    let place = Place::empty();
    place.write("misspelt.yaml", std::fs::read_to_string(&files[0]).unwrap().replace("runAsNonRoot", "runAsNonRot"));
    assert_eq!(validated("1.37", &[place.path("misspelt.yaml")]).code, Some(1), "a mistake is seen");
}

#[test]
fn no_container_runs_as_root_and_nothing_is_left_open() {
    for manifest in Manifest::all() {
        let (name, pod) = (manifest.name, manifest.pod());
        assert!(pod["securityContext"]["runAsNonRoot"] == true && pod["securityContext"]["runAsUser"].as_u64().unwrap() > 0, "{name}");
        assert_eq!(pod["automountServiceAccountToken"], false, "{name} needs nothing of Kubernetes");
        for container in manifest.containers() {
            is_pinned(container["image"].as_str().unwrap());
            let context = &container["securityContext"];
            assert!(context["readOnlyRootFilesystem"] == true && context["allowPrivilegeEscalation"] == false, "{name}: {context}");
            assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"], "{name}");
            assert!(
                container["resources"]["limits"]["memory"].is_string() && container["resources"]["requests"]["cpu"].is_string(),
                "{name}"
            );
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                let volume = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == mount["name"]);
                let volume = volume.unwrap_or_else(|| panic!("{name}: there is no volume {}", mount["name"]));
                if let Some(map) = volume.get("configMap") {
                    assert_eq!(map["name"], manifest.of_kind("ConfigMap").unwrap()["metadata"]["name"], "{name}");
                }
                assert!(volume.get("secret").is_none() || mount["readOnly"] == true, "{name}: {mount}");
            }
        }
    }
}

#[test]
fn selectors_select_the_pods() {
    for manifest in Manifest::all() {
        let labels = &manifest.workload()["spec"]["template"]["metadata"]["labels"];
        assert_eq!(manifest.workload()["spec"]["selector"]["matchLabels"], *labels, "{}", manifest.name);
        if let Some(budget) = manifest.of_kind("PodDisruptionBudget") {
            assert_eq!(budget["spec"]["selector"]["matchLabels"], *labels, "{}", manifest.name);
        }
        if let Some(service) = manifest.of_kind("Service") {
            assert_eq!(service["spec"]["selector"], *labels, "{}", manifest.name);
            assert_eq!(manifest.workload()["spec"]["serviceName"], service["metadata"]["name"], "{}", manifest.name);
        }
        if let Some(policy) = manifest.of_kind("NetworkPolicy") {
            assert_eq!(policy["spec"]["podSelector"]["matchLabels"], *labels, "{}", manifest.name);
        }
    }
}

/// Sidecars reach each other, and nothing else reaches them; the worker is reached by all.
#[test]
fn the_network_policy_is_about_the_ports_of_the_sidecar_and_the_worker() {
    let manifest = Manifest::sidecar();
    let policy = &manifest.of_kind("NetworkPolicy").unwrap()["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    let [members, all] = policy["ingress"].as_array().unwrap().as_slice() else { panic!("two rules: {policy}") };
    let ports = |of: &Value| of["ports"].as_array().unwrap().iter().map(|port| port["containerPort"].clone()).collect::<Vec<_>>();
    let allowed = |rule: &Value| rule["ports"].as_array().unwrap().iter().map(|port| port["port"].clone()).collect::<Vec<_>>();
    let labels = &manifest.workload()["spec"]["template"]["metadata"]["labels"];
    assert_eq!(members["from"], json!([{"podSelector": {"matchLabels": labels}}]));
    assert_eq!((allowed(members), all.get("from")), (ports(manifest.ours()), None));
    let worker = manifest.containers().into_iter().find(|container| container["name"] == "worker").unwrap();
    assert_eq!(allowed(all), ports(worker));
    let arguments = strings(&manifest.ours()["args"]);
    assert_eq!(allowed(members), [json!(listens_at(&arguments))]);
    // Requests there have no proof: only the sidecar may send them.
    let forward = arguments.iter().find_map(|argument| argument.strip_prefix("http://127.0.0.1:")).unwrap();
    let port: u16 = forward.split('/').next().unwrap().parse().unwrap();
    assert!(![ports(worker), ports(manifest.ours())].concat().contains(&json!(port)), "{forward} is reached from other pods");
}

/// The commands of the page that make the files of the secret, and the last one, which stores them.
pub(crate) fn secret() -> (String, String) {
    let page = std::fs::read_to_string(file("../docs/howto/kubernetes.md")).unwrap();
    let block = page.split("```sh\n").find(|block| block.contains("openssl req")).unwrap().split("```").next().unwrap();
    let (make, store) = block.split_once("kubectl ").unwrap();
    (make.to_owned(), store.replace("\\\n", " "))
}

#[test]
fn the_secret_of_the_page_has_what_the_manifest_mounts() {
    let (manifest, (_, store)) = (Manifest::sidecar(), secret());
    let mut keys: Vec<_> = store.split_whitespace().filter_map(|word| word.strip_prefix("--from-file=")).collect();
    assert!(store.starts_with("create secret generic worker-sidecar "), "{store}");
    let volumes = manifest.pod()["volumes"].as_array().unwrap();
    let secrets: Vec<_> = volumes.iter().filter_map(|volume| volume.get("secret")).collect();
    assert!(secrets.len() == 2 && secrets.iter().all(|secret| secret["secretName"] == "worker-sidecar"), "{secrets:?}");
    let arguments = strings(&manifest.ours()["args"]);
    let mut used: Vec<_> = arguments.iter().filter_map(|argument| argument.strip_prefix("/var/run/secrets/shardwise/")).collect();
    used.sort_unstable();
    keys.sort_unstable();
    assert_eq!(used, keys, "the sidecar uses each");
    // The worker's own container has what a client needs, and not what makes a member.
    let items = secrets.iter().find_map(|secret| secret["items"].as_array()).unwrap();
    assert_eq!(items.iter().map(|item| item["key"].as_str().unwrap()).collect::<Vec<_>>(), ["worker-token", "ca.crt"]);
}

#[test]
fn arguments_settings_and_ports_fit_the_program() {
    for manifest in Manifest::all() {
        let (name, container) = (manifest.name, manifest.ours());
        let arguments = strings(&container["args"]);
        takes(&arguments);
        let content = manifest.settings();
        let environment = container["env"].as_array().unwrap();
        let variables: Vec<_> = environment.iter().map(|each| (each["name"].as_str().unwrap(), downward(each))).collect();
        let get = settings(content, &variables);
        assert_eq!(get("resilience.sharding.instance.id"), "a-pod", "{name}: each pod its own id");
        assert_eq!(get("resilience.sharding.instance.address"), "10.1.2.3", "{name}: by the downward API");
        let port = get("resilience.sharding.instance.port");

        let policy = arguments.iter().position(|argument| *argument == "--policy").map(|at| arguments[at + 1].to_owned());
        let policy = policy.unwrap_or_else(|| get("outbox.orders.policy"));
        let before = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
        let patience = manifest.pod()["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(patience >= before + stops_within(&get, &policy), "{name} is killed while it drains");

        for probe in ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| &container[probe]) {
            if let Some(http) = probe.get("httpGet") {
                let ports = container["ports"].as_array().unwrap();
                let named = ports.iter().find(|port| port["name"] == http["port"]).unwrap_or_else(|| panic!("{name}: {http}"));
                let listens = listens_at(&arguments).to_string();
                assert_eq!(named["containerPort"].to_string(), listens, "{name}");
                // The port of a sidecar's record is its worker's.
                assert!(port == listens || arguments[0] == "serve", "{name}");
                assert_eq!(http["scheme"] == "HTTPS", arguments.contains(&"--tls-cert"), "{name}: {http}");
                assert!(["/livez", "/readyz"].contains(&http["path"].as_str().unwrap()), "{name}");
            } else {
                assert_eq!(probes(&strings(&probe["exec"]["command"])), 8087, "{name}: {probe}");
            }
        }
        for probe in ["startupProbe", "livenessProbe"] {
            assert!(container[probe].to_string().contains("/livez"), "{name}: whoever is not ready is not restarted for it: {probe}");
        }
        let starts = |what: &str| container["startupProbe"][what].as_u64().unwrap();
        assert!(starts("periodSeconds") * starts("failureThreshold") > ttl(&get, &policy) + 5, "{name}: a former self is waited for");
    }
}

/// They need no other server than those of their outbox; a worker with a sidecar has none, and its manifest shows etcd.
#[test]
fn publishers_meet_in_their_outbox_with_the_password_that_is_mounted() {
    for manifest in Manifest::publishers() {
        let (name, get) = (manifest.name, settings(manifest.settings(), &[]));
        let policy = get("outbox.orders.policy");
        assert_eq!(get(&format!("resilience.sharding.policies.{policy}.discovery.backend")), "outbox", "{name}");
        let password = get("outbox.orders.store_password_file");
        let mounts = manifest.ours()["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["name"] == "secrets").unwrap()["mountPath"].as_str().unwrap();
        let key =
            password.strip_prefix(mount).and_then(|rest| rest.strip_prefix('/')).unwrap_or_else(|| panic!("{name} mounts no {password}"));
        assert!(mount.starts_with(SECRETS), "{name}");
        let volume = manifest.pod()["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "secrets").unwrap();
        // The files are root's; `fsGroup` is the group.
        assert_eq!(volume["secret"]["defaultMode"], 0o440, "{name}: the publisher's group reads it, and nobody else");
        let page = std::fs::read_to_string(file("../docs/howto/kubernetes.md")).unwrap();
        let secret = volume["secret"]["secretName"].as_str().unwrap();
        let made = format!("kubectl create secret generic {secret} --from-file={key}\n");
        assert!(page.contains(&made), "{name}: the page has no {made}");
    }
    let get = settings(Manifest::sidecar().settings(), &[]);
    assert_eq!(get("resilience.sharding.policies.my_custom_workers.discovery.backend"), "etcd");
}

/// An ordinary container is stopped at the same moment as the worker, which must end while it still owns its keys. A publisher runs in
/// the only container of its pod.
#[test]
fn only_a_sidecar_waits_before_it_stops() {
    for manifest in Manifest::all() {
        let container = manifest.ours();
        let is_sidecar = strings(&container["args"])[0] == "serve";
        let hook = &container["lifecycle"]["preStop"];
        let waits = hook["sleep"]["seconds"].as_u64().is_some_and(|seconds| seconds > 0);
        assert!(waits == is_sidecar && hook.is_null() != is_sidecar, "{}: {hook}", manifest.name);
    }
}

/// The value of a variable in a pod.
fn downward(variable: &Value) -> &str {
    assert!(variable["name"].as_str().unwrap().starts_with(INSTANCE), "{variable}");
    match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
        Some("metadata.name") => "a-pod",
        Some("status.podIP") => "10.1.2.3",
        _ => variable["value"].as_str().unwrap(),
    }
}

#[test]
fn a_stateful_set_keeps_places_and_a_deployment_none() {
    for manifest in Manifest::all() {
        let grace = settings(manifest.settings(), &[])(&format!(
            "resilience.sharding.policies.{}.rejoin_grace",
            if manifest.name.starts_with("sidecar") { "my_custom_workers" } else { "publishers" }
        ));
        let is_fixed = manifest.of_kind("StatefulSet").is_some();
        assert_eq!(grace != "0s", is_fixed, "{}: places are kept for ids that come back", manifest.name);
    }
}
