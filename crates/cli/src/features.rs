//! The Cargo features of this build.

use std::sync::LazyLock;

/// Each feature, what it adds in the terms of the settings, and whether this build has it. As in the manifest, where the feature `default`
/// names them all.
const FEATURES: [(&str, &str, bool); 11] = [
    ("consul", "the discovery backend consul", cfg!(feature = "consul")),
    ("etcd", "the discovery backend etcd", cfg!(feature = "etcd")),
    ("http", "HTTP sinks", cfg!(feature = "http")),
    ("kafka", "Kafka sinks", cfg!(feature = "kafka")),
    ("nats", "the discovery backend nats, and NATS sinks", cfg!(feature = "nats")),
    ("otel", "traces over OTLP", cfg!(feature = "otel")),
    ("postgres", "the discovery backend postgres, and outboxes in PostgreSQL", cfg!(feature = "postgres")),
    ("prometheus", "/metrics", cfg!(feature = "prometheus")),
    ("rabbitmq", "RabbitMQ sinks", cfg!(feature = "rabbitmq")),
    ("redis", "Redis sinks", cfg!(feature = "redis")),
    ("valkey", "the discovery backend valkey", cfg!(feature = "valkey")),
];

/// What to do about a feature that this build lacks; `None` if it has it.
pub(crate) fn missing(name: &str) -> Option<String> {
    let (_, adds, _) = FEATURES.into_iter().find(|(known, _, is_built)| *known == name && !is_built)?;
    let built = FEATURES.into_iter().filter(|(.., is_built)| *is_built).map(|(built, ..)| built);
    let features: Vec<_> = std::iter::once(name).chain(built).collect();
    Some(format!(
        "this build of shardwise has no feature {name:?} ({adds}); install one that has it, in a checkout: \
         cargo install --locked --path crates/cli --no-default-features --features {}",
        features.join(",")
    ))
}

/// The version, and below it the features that this build lacks.
pub(crate) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let lacks: Vec<_> = FEATURES.into_iter().filter(|(_, _, is_built)| !is_built).map(|(name, ..)| name).collect();
        with_features_lacking(env!("CARGO_PKG_VERSION"), &lacks)
    });
    &TEXT
}

fn with_features_lacking(version: &str, lacks: &[&str]) -> String {
    match lacks {
        [] => version.to_owned(),
        _ => format!("{version}\nbuilt without: {}\nto install everything: cargo install --locked --path crates/cli", lacks.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_are_those_of_the_manifest() {
        let manifest = include_str!("../Cargo.toml");
        let names: Vec<_> = FEATURES.iter().map(|(name, ..)| format!("{name:?}")).collect();
        assert!(manifest.contains(&format!("\ndefault = [{}]\n", names.join(", "))), "{names:?}");
    }

    #[test]
    fn a_feature_is_missing_or_built() {
        for (name, _, is_built) in FEATURES {
            let missing = missing(name);
            assert_eq!(missing.is_none(), is_built, "{name}");
            assert!(missing.is_none_or(|text| text.ends_with(&format!("--features {name}"))));
        }
        assert_eq!(missing("sqlite"), None);
    }

    #[test]
    fn the_version_names_what_is_missing() {
        assert_eq!(with_features_lacking("1.2.3", &[]), "1.2.3");
        let lean = with_features_lacking("1.2.3", &["etcd", "nats"]);
        assert_eq!(lean, "1.2.3\nbuilt without: etcd, nats\nto install everything: cargo install --locked --path crates/cli");
    }
}
