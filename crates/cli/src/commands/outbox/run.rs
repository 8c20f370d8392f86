//! `shardwise outbox run`: one publisher, until it is stopped.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use shardwise::ShardingFactory;
use shardwise::settings::ADDRESS_AUTO;
use shardwise_outbox::OutboxPublisher;
use shardwise_outbox::settings::{LoadedSettings, SinkSettings};
use shardwise_sidecar::goes_on;

use super::counts::CountsDisplay;
use super::open_store::OpenedStore;
use super::{OutboxArgs, listen, sink};
use crate::commands::group::IdArg;
use crate::commands::{IS_IT_THERE, WHY_NOT_JOINED, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::listen_address::listen_address;
use crate::supervisor::Supervisor;
use crate::{output, signals, status_line, traces};

#[derive(Debug, Args)]
pub(crate) struct RunPublisher {
    #[command(flatten)]
    pub(super) which: OutboxArgs,
    #[command(flatten)]
    id: IdArg,
    /// Serve /livez, /readyz and /metrics on a local port or ADDRESS:PORT
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Accept requests for this host name too; repeatable
    #[arg(long, value_name = "NAME", requires = "listen")]
    allow_host: Vec<String>,
    /// Stop when the process that started this one, which has this id, is gone
    #[arg(long, hide = true, value_name = "PID")]
    exit_with_parent: Option<u32>,
}

impl RunPublisher {
    pub(super) async fn run(&self, mut settings: LoadedSettings, common: &Common) -> Result<Code> {
        if let Some(parent) = self.exit_with_parent {
            exit_with_parent(parent)?;
        }
        // Errors are reported in this order: the settings, before anything is contacted; the store; the group.
        self.id.put(&mut settings.settings)?;
        let (name, outbox) = self.which.named(&settings)?;
        let sink = sink::made(outbox)?;
        let factory = ShardingFactory::from_settings(settings.settings.clone())?;
        traces::runs_as(factory.instance_id().as_str());
        let shutdown = signals::shutdown()?;
        let listener = match self.listen {
            Some(address) => Some(listen::bind(address).await?),
            None => None,
        };
        let store = waiting(&format!("the outbox's store {}", outbox.store), IS_IT_THERE, OpenedStore::open(outbox)).await?;
        let what = waits_for(&factory, outbox.policy.as_str());
        let joining = async {
            // An unreachable sink may become reachable; an error that an operator must fix prevents the start.
            match sink.check().await {
                Err(error) if error.is_retryable() => output::note(format_args!("{error}; trying again while publishing")),
                checked => checked?,
            }
            let serves = shardwise_outbox::serves(&*store.shared(), name).await?;
            let sharding = factory.create_serving(outbox.policy.as_str(), serves)?;
            let publisher = OutboxPublisher::new(store.shared(), sink, Arc::new(sharding.clone()))?.options(outbox.options.clone())?;
            tokio::select! {
                joined = waiting(&what, WHY_NOT_JOINED, sharding.register_self()) => joined?,
                () = shutdown.cancelled() => {}
            }
            Ok::<_, CliFailure>((sharding, publisher))
        };
        let (sharding, publisher) = match joining.await {
            Ok(joined) => joined,
            Err(failure) => {
                store.close().await;
                return Err(failure);
            }
        };
        output::release_log();
        output::note(format_args!("publishing as {}; Ctrl-C or SIGTERM stops", sharding.instance_id()));
        let stats = publisher.stats();
        let _listening = listener.map(|(listener, render)| {
            if let Ok(address) = listener.local_addr() {
                output::note(format_args!("listening on http://{address}"));
            }
            // A client may always call it by the address that stands for `auto`.
            let own = settings.settings.instance.address.iter().map(|address| address.host.clone()).filter(|host| host != ADDRESS_AUTO);
            let hosts = self.allow_host.iter().cloned().chain(own).collect();
            listen::serve(listener, hosts, listen::ListenState { stats: stats.clone(), sharding: sharding.clone() }, render)
        });
        let display = CountsDisplay::of(common.format(), matches!(outbox.sink, SinkSettings::Stdout), self.listen.is_some());
        let counts = display.show(stats.clone(), sharding.clone());
        let supervisor = Supervisor::from_environment();
        supervisor.notify("READY=1");
        let (turns, driver) = (stats.clone(), sharding.clone());
        let _watched = supervisor.watch(move || listen::turns(&turns, &driver).is_ok() && goes_on(&driver));
        // Both at once: other publishers want its slots while it finishes its work, and receive each slot as soon as it is released.
        let stopped = shutdown.clone();
        let publishing = async {
            let published = publisher.run(shutdown.clone()).await;
            shutdown.cancel();
            published
        };
        let leaving = async {
            stopped.cancelled().await;
            supervisor.notify("STOPPING=1");
            sharding.deregister_self().await
        };
        let (published, left) = tokio::join!(publishing, leaving);
        store.close().await;
        drop(counts);
        status_line::end();
        published?;
        left?;
        let now = stats.snapshot();
        output::note(format_args!(
            "stopped: {} delivered, {} retried, {} parked, {} discarded, {} fenced",
            now.delivered, now.retried, now.parked, now.discarded, now.fenced
        ));
        Ok(Code::Ok)
    }
}

/// Requests SIGTERM for this process when its parent ends, for whatever reason.
fn exit_with_parent(parent: u32) -> Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)
        .map_err(|error| CliFailure::io("watch for the parent's end", &error.into()))?;
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(CliFailure::new(Code::No, "the process that started this one is gone"))
    }
}
