//! Workers on any number of machines that share a hundred tenants. Start it in two or three terminals or on several machines, end one with
//! Ctrl-C or kill -9, and see the shares move.
//!
//! `cargo run -p shardwise-examples --example workers -- etcd`. The word names the settings in `examples/workers/`, one file for each place
//! to meet: `local` (a file of this machine), `consul`, `etcd`, `nats`, `postgres`, `valkey`. Nothing else differs. Each file says how to
//! start a server to play with; another address can come from the environment, such as
//! `SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__ETCD__ENDPOINTS=http://10.0.0.7:2379`.
//!
//! PostgreSQL needs tables: `--example workers -- postgres init` makes them, as `shardwise backend init` does.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its reader")]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use shardwise::ShardingFactory;
use tokio::signal::unix::{SignalKind, signal};

const POLICY: &str = "tenant_workers";
/// How often a worker goes through its tenants.
const ROUND: Duration = Duration::from_secs(1);

/// Works until SIGTERM or Ctrl-C; errors are printed in one line.
#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let backend = arguments.next().ok_or("where do workers meet? Write local, consul, etcd, nats, postgres or valkey")?;
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/workers"));
    let factory = ShardingFactory::from_file(folder.join(format!("{backend}.toml")))?;
    if arguments.next().as_deref() == Some("init") {
        println!("{}", factory.init_backend(POLICY).await?);
        return Ok(());
    }
    work(&factory).await
}

async fn work(factory: &ShardingFactory) -> Result<(), Box<dyn Error>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let sharding = factory.create(POLICY)?;
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
