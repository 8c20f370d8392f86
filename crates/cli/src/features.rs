//! The Cargo features of this build.

use std::sync::LazyLock;

struct Feature {
    name: &'static str,
    /// What the feature adds, in the terms of the settings.
    adds: &'static str,
    is_built: bool,
}

macro_rules! features {
    ($($name:literal: $adds:literal),* $(,)?) => {
        const FEATURES: &[Feature] = &[$(Feature { name: $name, adds: $adds, is_built: cfg!(feature = $name) }),*];
    };
}

// As in the manifest, where the feature `default` names them all.
features! {
    "consul": "the discovery backend consul",
    "etcd": "the discovery backend etcd",
    "http": "HTTP sinks",
    "nats": "NATS sinks",
    "otel": "traces over OTLP",
    "postgres": "outboxes in PostgreSQL",
    "prometheus": "/metrics",
    "rabbitmq": "RabbitMQ sinks",
    "redis": "Redis sinks",
}

/// What to do about a feature that this build lacks; `None` if it has it.
pub(crate) fn missing(name: &str) -> Option<String> {
    let feature = FEATURES.iter().find(|feature| feature.name == name && !feature.is_built)?;
    Some(format!(
        "this build of shardwise has no feature {name:?} ({}); install one that has it: cargo install --path crates/cli --features {name}",
        feature.adds
    ))
}

/// The version, and below it the features that this build lacks.
pub(crate) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let lacks: Vec<_> = FEATURES.iter().filter(|feature| !feature.is_built).map(|feature| feature.name).collect();
        with_features_lacking(env!("CARGO_PKG_VERSION"), &lacks)
    });
    &TEXT
}

fn with_features_lacking(version: &str, lacks: &[&str]) -> String {
    match lacks {
        [] => version.to_owned(),
        _ => format!("{version}\nbuilt without: {}\nto install everything: cargo install --path crates/cli", lacks.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_are_those_of_the_manifest() {
        let manifest = include_str!("../Cargo.toml");
        let names: Vec<_> = FEATURES.iter().map(|feature| format!("{:?}", feature.name)).collect();
        assert!(manifest.contains(&format!("\ndefault = [{}]\n", names.join(", "))), "{names:?}");
    }

    #[test]
    fn a_feature_is_missing_or_built() {
        for feature in FEATURES {
            let missing = missing(feature.name);
            assert_eq!(missing.is_none(), feature.is_built, "{}", feature.name);
            assert!(missing.is_none_or(|text| text.ends_with(&format!("--features {}", feature.name))));
        }
        assert_eq!(missing("sqlite"), None);
    }

    #[test]
    fn the_version_names_what_is_missing() {
        assert_eq!(with_features_lacking("1.2.3", &[]), "1.2.3");
        let lean = with_features_lacking("1.2.3", &["etcd", "nats"]);
        assert_eq!(lean, "1.2.3\nbuilt without: etcd, nats\nto install everything: cargo install --path crates/cli");
    }
}
