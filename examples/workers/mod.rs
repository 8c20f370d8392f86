//! The work of `consul_workers` and `etcd_workers`, independent of the backend.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use shardwise::ShardingFactory;
use tokio::signal::unix::{SignalKind, signal};

/// How often a worker goes through its tenants.
const ROUND: Duration = Duration::from_secs(1);

/// Works until SIGTERM or Ctrl-C; errors are printed in one line.
pub(crate) async fn run(settings: &str) -> ExitCode {
    match work(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn work(settings: &str) -> Result<(), Box<dyn Error>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let sharding = ShardingFactory::from_file(settings)?.create("tenant_workers")?;
    let tenants: Vec<String> = (0..100).map(|n| format!("tenant-{n:03}")).collect();
    let mut changes = sharding.rebalances();
    let mut rounds = tokio::time::interval(ROUND);
    sharding.register_self().await?;

    loop {
        tokio::select! {
            Some(_) = changes.recv() => {
                let (workers, mine) = (sharding.members().active(), sharding.count_owned_items(&tenants));
                println!("workers: {workers}, mine: {mine} of {} tenants", tenants.len());
            }
            _ = rounds.tick() => {
                for tenant in sharding.filter_owned_items(&tenants) {
                    // Long work asks again in between: shares move while it runs.
                    if sharding.owns(tenant) {
                        send_reminders(tenant).await;
                    }
                }
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    // The others take over at once, instead of after the TTL.
    sharding.deregister_self().await?;
    println!("left");
    Ok(())
}

/// Stands for your worker's task for one tenant.
async fn send_reminders(_tenant: &str) {
    tokio::task::yield_now().await;
}
