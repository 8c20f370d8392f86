//! Connections to one server: the words for their failures, and what kind of server it is.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use shardwise_discovery::tls::{ConnectFailure, SystemTrust, TlsError, TlsFiles};
use shardwise_discovery::valkey::DialFailure;

use crate::error::{Failure, ServerContext, ValkeyResult};

/// Reads the files of TLS, to find out whether they can be used.
pub(crate) fn load(files: &TlsFiles) -> ValkeyResult<Arc<ClientConfig>> {
    Ok(Arc::new(files.client_config(SystemTrust::Required).map_err(|error| of_file(&error))?))
}

fn of_file(error: &TlsError) -> Failure {
    Failure::Setting { setting: error.file.setting(), why: error.of_setting() }
}

/// Why there is no connection to a server, with the settings that matter.
pub(crate) fn meaning_of(failure: DialFailure, context: &ServerContext) -> Failure {
    let (place, setting) = (context.place.clone(), context.setting);
    match failure {
        DialFailure::OnlyTls => Failure::OnlyTls { place, setting },
        DialFailure::Login(error) => context.meaning(&error),
        DialFailure::Connect(ConnectFailure::Unreachable(why)) => Failure::Unreachable { place, setting, why },
        DialFailure::Connect(ConnectFailure::File(error)) => of_file(&error),
        DialFailure::Connect(ConnectFailure::NotTls) => Failure::NotTls { place, setting },
        DialFailure::Connect(ConnectFailure::SilentOnTls(after)) => {
            let why = format!("it accepts the connection but does not answer the TLS handshake within {} ms", after.as_millis());
            Failure::Unreachable { place, setting, why }
        }
        DialFailure::Connect(ConnectFailure::Certificate { why, advice }) => {
            Failure::Certificate { place, why, advice: advice.with_setting("discovery.valkey.ca_file") }
        }
        DialFailure::Connect(ConnectFailure::ClientCertificate(why)) => Failure::ClientCertificate { place, why },
        DialFailure::Connect(ConnectFailure::Handshake(why)) => Failure::Handshake { place, setting, why },
    }
}

/// How long a server may take for its part of a handshake; below the limit of the whole connection.
pub(crate) const TLS_LIMIT: Duration = Duration::from_millis(1500);
/// How long one attempt to connect may take.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerFacts {
    /// The name of its data's history.
    pub(crate) origin: String,
    is_valkey: bool,
    version: String,
    mode: String,
    role: String,
    has_memory_limit: bool,
    policy: String,
}

impl ServerFacts {
    /// Reads the answer to INFO.
    pub(crate) fn read(info: &str) -> Self {
        let mut facts = Self::default();
        for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
            match name {
                "master_replid" => value.clone_into(&mut facts.origin),
                "valkey_version" => facts.is_valkey = true,
                "redis_version" => value.clone_into(&mut facts.version),
                // Valkey has both names.
                "redis_mode" | "server_mode" => value.clone_into(&mut facts.mode),
                "role" => value.clone_into(&mut facts.role),
                "maxmemory" => facts.has_memory_limit = value != "0",
                "maxmemory_policy" => value.clone_into(&mut facts.policy),
                _ => {}
            }
        }
        facts
    }

    /// Whether members can meet at such a server.
    pub(crate) fn check(&self, context: &ServerContext) -> ValkeyResult<()> {
        let place = context.place.clone();
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        match self.mode.as_str() {
            "sentinel" => return Err(Failure::IsSentinel { place }),
            "cluster" => return Err(Failure::Cluster { place }),
            _ => {}
        }
        if !self.is_valkey && major.is_some_and(|major| major < 7) {
            return Err(Failure::OldServer { place, setting: context.setting, version: self.version.clone() });
        }
        if self.role.is_empty() || self.origin.is_empty() {
            return Err(Failure::NotValkey { place, setting: context.setting, why: "INFO lacks role or master_replid".into() });
        }
        if self.role != "master" {
            return Err(context.no_primary());
        }
        if self.has_memory_limit && self.policy.starts_with("allkeys") {
            return Err(Failure::Evicts { place, policy: self.policy.clone() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(info: &str, has_sentinels: bool) -> Result<(), Failure> {
        let context = ServerContext {
            place: "h:1".into(),
            setting: "discovery.valkey.url",
            of: "",
            username: None,
            prefix: "p".into(),
            has_sentinels,
        };
        ServerFacts::read(info).check(&context)
    }

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n# Replication\r\nrole:master\r\nmaster_replid:0a1b\r\n\
                        # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn only_a_primary_of_its_own_that_keeps_its_keys_will_do() {
        assert!(said(GOOD, false).is_ok());
        assert_eq!(ServerFacts::read(GOOD).origin, "0a1b");
        let changed = |from: &str, to: &str| GOOD.replace(from, to);
        assert!(matches!(said(&changed("role:master", "role:slave"), false), Err(Failure::Replica { .. })));
        assert!(matches!(said(&changed("role:master", "role:slave"), true), Err(Failure::NotPrimary { .. })));
        assert!(matches!(said(&changed("standalone", "cluster"), false), Err(Failure::Cluster { .. })));
        assert!(matches!(said(&changed("standalone", "sentinel"), false), Err(Failure::IsSentinel { .. })));
        let old = said(&changed("7.0.15", "6.2.14"), false).unwrap_err().to_string();
        assert!(["6.2.14", "Redis 7.0 or newer", "upgrade it", "discovery.valkey.url"].iter().all(|part| old.contains(part)), "{old}");
        assert!(said(&changed("7.0.15\r\n", "6.2.14\r\nvalkey_version:9.0.0\r\n"), false).is_ok(), "Valkey counts anew");
        let full = changed("maxmemory:0", "maxmemory:1000");
        assert!(said(&full, false).is_ok());
        assert!(matches!(said(&full.replace("noeviction", "allkeys-lru"), false), Err(Failure::Evicts { .. })));
        assert!(said(&full.replace("noeviction", "volatile-lru"), false).is_ok());
        assert!(matches!(said("", false), Err(Failure::NotValkey { .. })));
    }
}
