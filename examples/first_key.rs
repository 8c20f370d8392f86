//! The README's program, without its logs: join a group, print my keys whenever they change, leave on Ctrl-C. In two terminals it shares
//! the keys.
//!
//! `cargo run -p shardwise-examples --example first_key`

use shardwise::ShardingFactory;

#[tokio::main]
async fn main() -> shardwise::Result<()> {
    let factory = ShardingFactory::load()?; // settings.toml
    let sharding = factory.create("my_custom_workers")?;
    let mut changes = sharding.rebalances();
    sharding.register_self().await?;

    let keys: Vec<String> = (1..=9).map(|n| format!("tenant-{n}")).collect();
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c()); // once, outside the loop: no Ctrl-C is missed
    loop {
        tokio::select! {
            Some(_) = changes.recv() => println!("mine: {:?}", sharding.filter_owned_items(&keys)),
            _ = &mut stop => break,
        }
    }
    sharding.deregister_self().await
}
