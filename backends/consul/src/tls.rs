//! TLS to the agent.

use rustls::ClientConfig;
use shardwise_discovery::tls::{SystemTrust, TlsError, TlsFile, TlsFiles};

use crate::ConsulConfig;
use crate::config::AgentEndpoint;
use crate::error::{Failure, Result};

/// What the client hands to reqwest, which wants a configuration without TLS too.
pub(crate) fn client_config(config: &ConsulConfig, endpoint: &AgentEndpoint) -> Result<ClientConfig> {
    let files = TlsFiles::new(config.ca_file.as_ref(), config.cert_file.as_ref(), config.key_file.as_ref()).map_err(lonely)?;
    let trust = if endpoint.tls { SystemTrust::Required } else { SystemTrust::Unused };
    let unusable = |error: TlsError| Failure::BadSetting { key: error.file.setting(), why: error.of_setting() };
    let mut client = files.client_config(trust).map_err(unusable)?;
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(client)
}

fn lonely(missing: TlsFile) -> Failure {
    let set = if missing == TlsFile::Key { TlsFile::Certificate } else { TlsFile::Key };
    Failure::BadSetting { key: set.setting(), why: format!("is set without discovery.consul.{}; set both or none", missing.setting()) }
}
