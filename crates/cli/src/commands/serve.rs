//! `shardwise serve`: runs the sidecar.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shardwise::ShardingFactory;
use shardwise::settings::DiscoverySettings;
use shardwise_outbox::settings::LoadedSettings;
use shardwise_sidecar::{Options, Sidecar, Tls, Token, WorkerCheck, describe_metrics, goes_on};
use tokio_util::task::AbortOnDropHandle;

use super::group::{IdArg, implied_policy, note_no_file};
use super::outbox::SidecarOutbox;
use super::{IS_IT_THERE, WAITS_QUIETLY, WHY_NOT_JOINED, joins_no_outbox, load_with_outboxes, still_waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::listen_address::listen_address;
use crate::supervisor::Supervisor;
use crate::{descriptors, output, recorder, signals, traces};

#[derive(Debug, Args)]
#[command(after_help = "\
Joins under each --policy, then prints one JSON line: {\"listening\":\"127.0.0.1:8087\",...}.
GET / is the page, GET /openapi.json the routes. Actions need a token; beyond loopback, TLS too.
SIGTERM and Ctrl-C drain and leave; a second one ends at once. Traces: $OTEL_EXPORTER_OTLP_ENDPOINT.

  shardwise serve --id worker-1
  shardwise serve --observe outbox_publishers --outbox orders")]
pub(crate) struct Serve {
    // A comment, because a doc comment would need backticks.
    #[arg(long, value_name = "NAME", help = "Join these policies [default: $SHARDWISE_POLICY, or the only one]")]
    policy: Vec<String>,
    /// Show this policy, an outbox's too, without joining it; repeatable
    #[arg(long, value_name = "NAME")]
    observe: Vec<String>,
    #[command(flatten)]
    id: IdArg,
    /// Listen here; port 0 is any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8087", value_parser = listen_address)]
    listen: SocketAddr,
    /// Require the token in this file, of at least 16 bytes
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Admit workers with this token to the routes that they need
    #[arg(long, value_name = "FILE")]
    worker_token_file: Option<PathBuf>,
    /// Admit callers with this token to requests to members alone
    #[arg(long, value_name = "FILE")]
    caller_token_file: Option<PathBuf>,
    /// Serve TLS with this certificate chain, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Use this private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept requests for this host name too; repeatable
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Use the members' token in this file instead of the settings'
    #[arg(long, value_name = "FILE")]
    peer_token_file: Option<PathBuf>,
    /// Trust members whose certificate this CA has signed, in PEM
    #[arg(long, value_name = "FILE")]
    peer_ca_file: Option<PathBuf>,
    /// Expect this name in members' certificates, not their address
    #[arg(long, value_name = "NAME", requires = "peer_ca_file")]
    peer_name: Option<String>,
    /// Show members this certificate chain, and require theirs, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["peer_key", "peer_ca_file", "tls_cert"])]
    peer_cert: Option<PathBuf>,
    /// Use this private key of --peer-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
    /// Forward other requests of members to the worker at this URL
    #[arg(long, value_name = "URL")]
    forward_to: Option<String>,
    /// Own nothing unless the worker answers here (http:// or tcp://)
    #[arg(long, value_name = "URL")]
    worker_health: Option<String>,
    /// Show this outbox on the page, and replay its dead letters there
    #[arg(long, value_name = "NAME")]
    outbox: Option<String>,
    /// Refuse longer lists of keys
    #[arg(long, value_name = "BYTES", default_value_t = shardwise_sidecar::Limits::default().list_bytes, value_parser = clap::value_parser!(u64).range(1..))]
    max_list: u64,
    /// Keep at most N connections, and close the idlest
    #[arg(long, value_name = "N", default_value_t = shardwise_sidecar::Limits::default().connections)]
    max_connections: usize,
    /// Answer at most this many requests a second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

#[derive(Serialize)]
struct Ready<'a> {
    listening: SocketAddr,
    tls: bool,
    policies: &'a [String],
    observes: &'a [String],
    instance_id: &'a str,
}

impl Serve {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        let mut loaded = load_with_outboxes(common)?;
        if !loaded.settings.enabled {
            let why = "enabled = false: there is no group to answer for; set it to true, or do without a sidecar";
            return Err(CliFailure::usage(why));
        }
        // With only --observe, no policy is joined by default.
        let is_implied = self.policy.is_empty() && self.observe.is_empty();
        let policies = if is_implied { vec![implied_policy(&loaded.settings)?] } else { self.policy.clone() };
        if policies.is_empty() {
            self.id.unused()?;
            if self.worker_health.is_some() {
                return Err(CliFailure::usage("--worker-health is for a policy that is joined: add --policy, or drop it"));
            }
        }
        self.id.put(&mut loaded.settings)?;
        for policy in &policies {
            joins_no_outbox(&loaded.settings, policy, &format!("show it with --observe {policy}"))?;
        }
        let mut options = self.options()?;
        let outbox = self.outbox.as_ref().map(|name| shown(name, &loaded)).transpose()?;
        options.outbox = outbox.as_ref().map(|(shown, _)| Arc::clone(shown) as Arc<dyn shardwise_sidecar::Outbox>);
        let observed = self.observed(&loaded);
        let factory = ShardingFactory::from_settings(loaded.settings)?;
        traces::runs_as(factory.instance_id().as_str());
        let sidecar = Sidecar::new(factory.clone(), &policies, options)?;
        let services = policies.iter().map(|policy| factory.create(policy)).collect::<shardwise::Result<Vec<_>>>()?;
        let (supervisor, watched) = (Supervisor::from_environment(), Cell::new(None));
        let (address, unheard, has_joined) = (sidecar.address(), Cell::new(None), Cell::new(false));
        let ready = || {
            has_joined.set(true);
            output::release_log();
            observed.iter().for_each(note_no_file);
            let (tls, instance_id) = (self.tls_cert.is_some(), factory.instance_id().as_str());
            output::json_line(&Ready { listening: address, tls, policies: &policies, observes: &self.observe, instance_id })?;
            supervisor.notify("READY=1");
            // On the thread of the renewals, so that a hanging thread stops the notifications.
            watched.set(supervisor.watch(move || services.iter().all(goes_on)));
            Ok::<_, CliFailure>(())
        };
        let shutdown = async {
            let _reporting = outbox.map(|(shown, ttl)| AbortOnDropHandle::new(tokio::spawn(shown.report(ttl))));
            match signals::shutdown() {
                Ok(token) => {
                    let is_quiet = tokio::time::timeout(WAITS_QUIETLY, token.cancelled()).await.is_err();
                    if is_quiet && !has_joined.get() {
                        let hint = if policies.is_empty() { IS_IT_THERE } else { WHY_NOT_JOINED };
                        let what = match &[&policies[..], &self.observe].concat()[..] {
                            [only] => waits_for(&factory, only),
                            several => format!("the discovery backends of the policies {}", several.join(", ")),
                        };
                        still_waiting(&what, hint);
                    }
                    token.cancelled().await;
                }
                Err(failure) => unheard.set(Some(failure)),
            }
            supervisor.notify("STOPPING=1");
        };
        sidecar.run(ready, shutdown)?;
        unheard.take().map_or(Ok(Code::Ok), Err)
    }

    /// The discovery settings of the policies that are only observed, without duplicates. The sidecar reports an unknown policy.
    fn observed(&self, loaded: &LoadedSettings) -> Vec<DiscoverySettings> {
        let mut observed: Vec<DiscoverySettings> = Vec::new();
        for policy in self.observe.iter().filter_map(|name| loaded.settings.policy(name).ok()) {
            if !observed.contains(&policy.discovery) {
                observed.push(policy.discovery.clone());
            }
        }
        observed
    }

    fn options(&self) -> Result<Options> {
        let mut options = Options::new(self.listen);
        options.token = self.token_file.as_deref().map(Token::from_file).transpose()?;
        options.worker_token = self.worker_token_file.as_deref().map(Token::from_file).transpose()?;
        options.caller_token = self.caller_token_file.as_deref().map(Token::from_file).transpose()?;
        if let (Some(chain), Some(key)) = (&self.tls_cert, &self.tls_key) {
            options.tls = Some(Tls::from_files(chain, key)?);
        }
        options.peers.token = self.peer_token_file.as_deref().map(Token::from_file).transpose()?;
        match (&self.peer_ca_file, &self.peer_cert, &self.peer_key) {
            (Some(file), Some(chain), Some(key)) => options.peers.trust_mutually(file, chain, key)?,
            (Some(file), ..) => options.peers.trust(file)?,
            _ => {}
        }
        self.peer_name.as_deref().map_or(Ok(()), |name| options.peers.expect_name(name))?;
        self.forward_to.as_deref().map_or(Ok(()), |address| options.peers.forward_to(address))?;
        options.worker = self.worker_health.as_deref().map(WorkerCheck::parse).transpose()?;
        options.hosts.clone_from(&self.allow_host);
        options.observe.clone_from(&self.observe);
        (options.limits.list_bytes, options.limits.rate) = (self.max_list, self.rate);
        options.limits.connections = descriptors::for_connections(self.max_connections);
        options.render = recorder::install(&[])?;
        describe_metrics();
        Ok(options)
    }
}

/// An outbox of the settings, and the TTL of its publishers.
fn shown(name: &str, loaded: &LoadedSettings) -> Result<(Arc<SidecarOutbox>, Duration)> {
    let outbox = loaded.outbox(name)?;
    Ok((SidecarOutbox::new(name, outbox), loaded.settings.policy(outbox.policy.as_str())?.timing.ttl))
}
