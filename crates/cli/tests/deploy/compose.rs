//! `deploy/compose/compose.yaml`.

use serde_json::Value;

use crate::{SECRETS, file, is_pinned, listens_at, probes, seconds, settings, stops_within, strings, takes, text, yaml};

fn compose() -> Value {
    let [compose] = <[Value; 1]>::try_from(yaml("compose/compose.yaml")).unwrap();
    compose
}

/// Our own services, with their configuration.
fn ours(compose: &Value) -> Vec<(&String, &Value)> {
    let services = compose["services"].as_object().unwrap().iter();
    services.filter(|(_, service)| service["image"].as_str().unwrap().starts_with("shardwise:")).collect()
}

#[test]
fn commands_and_checks_are_the_programs_own() {
    let compose = compose();
    let ours = ours(&compose);
    assert_eq!(ours.len(), 4, "init and three workers");
    for (name, service) in ours {
        let command = strings(&service["command"]);
        takes(&command);
        assert!(service["read_only"] == true && strings(&service["cap_drop"]) == ["ALL"], "{name}");
        assert_eq!(service["image"], format!("shardwise:{}", env!("CARGO_PKG_VERSION")));
        if name == "init" {
            continue;
        }
        let port = listens_at(&command);
        let check = strings(&service["healthcheck"]["test"]);
        assert_eq!((check[0], probes(&check[1..])), ("CMD", port), "{name}");
        assert!(strings(&service["ports"])[0].ends_with(&format!(":{port}")), "{name}");
    }
}

#[test]
fn the_settings_fit_the_services() {
    let compose = compose();
    let services = &compose["services"];
    let mut ids = Vec::new();
    for (name, service) in ours(&compose).into_iter().filter(|(name, _)| *name != "init") {
        let variables = service["environment"].as_object().unwrap();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
        let get = settings(&text("compose/settings.toml"), &variables);
        assert_eq!(get("resilience.sharding.instance.address"), *name, "others reach it by its service's name");
        assert_eq!(get("resilience.sharding.instance.port"), listens_at(&strings(&service["command"])).to_string());
        ids.push(get("resilience.sharding.instance.id"));
        let patience = seconds(service["stop_grace_period"].as_str().unwrap());
        assert!(patience >= stops_within(&get, "publishers"), "{name} is killed while it drains");
        assert_eq!(get("resilience.sharding.policies.publishers.discovery.backend"), "outbox", "no server for this alone");
        for (key, other) in [("outbox.orders.store", "@postgres:5432/app"), ("outbox.orders.sink", "nats:4222")] {
            let value = get(key);
            assert!(value.ends_with(other), "{key} is {value}");
            let host = other.trim_start_matches('@').split(':').next().unwrap();
            assert!(services[host].is_object(), "there is no service {host}");
        }
        let secret = get("outbox.orders.store_password_file");
        let secret = secret.strip_prefix(SECRETS).unwrap();
        assert!(strings(&service["secrets"]).contains(&secret) && compose["secrets"][secret]["file"].is_string());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each has its own id");
}

#[test]
fn everything_that_is_named_is_there() {
    let compose = compose();
    for (name, service) in compose["services"].as_object().unwrap() {
        is_pinned(service["image"].as_str().unwrap());
        for published in service["ports"].as_array().into_iter().flatten() {
            assert!(published.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: a demo is not for everybody in the network");
        }
        for mounted in service["volumes"].as_array().into_iter().flatten() {
            let source = mounted.as_str().unwrap().split(':').next().unwrap();
            assert!(file(&format!("compose/{source}")).is_file(), "{name}: {source}");
        }
        for (dependency, how) in service["depends_on"].as_object().into_iter().flatten() {
            let other = &compose["services"][dependency];
            match how["condition"].as_str().unwrap() {
                "service_healthy" => assert!(other["healthcheck"]["test"].is_array(), "{name} waits for {dependency}, which has no check"),
                "service_completed_successfully" => assert_eq!(other["restart"], "no", "{name} waits for {dependency}, which never ends"),
                condition => panic!("{condition}"),
            }
        }
    }
    for secret in compose["secrets"].as_object().unwrap().values() {
        assert!(file(&format!("compose/{}", secret["file"].as_str().unwrap())).is_file());
    }
    let build = &compose["services"]["init"]["build"];
    let context = file("compose").join(build["context"].as_str().unwrap()).canonicalize().unwrap();
    assert!(context.join(build["dockerfile"].as_str().unwrap()).is_file() && context.join("Cargo.lock").is_file());
}
