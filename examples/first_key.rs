//! The README's ten lines: join a group, ask which keys are mine, leave. Start it twice at once and the keys are shared.
//!
//! `cargo run -p shardwise-examples --example first_key`

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use shardwise::ShardingFactory;

#[tokio::main]
async fn main() -> shardwise::Result<()> {
    let factory = ShardingFactory::load()?; // settings.toml
    let sharding = factory.create("my_custom_workers")?;
    sharding.register_self().await?;

    let keys = ["tenant-1", "tenant-2", "tenant-3"];
    for key in sharding.filter_owned_items(&keys) {
        println!("{key} is mine");
    }

    sharding.deregister_self().await
}
