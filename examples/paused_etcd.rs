//! A worker that was paused pays from an account in etcd that another one has taken over: the transaction depends on the worker's claim,
//! which is gone.
//!
//! `cargo run -p shardwise-examples --example paused_etcd`. It needs etcd: `etcd` starts one to play with; another address can come from
//! `ETCD_ENDPOINT`. It takes some seconds, until the lease of a stopped worker has expired. How and why: `docs/reference/fencing.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its reader")]

mod paused;

use std::process::ExitCode;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use paused::{ACCOUNT, BALANCE, Paid, Result, RunFolder};
use shardwise::ShardingService;
use shardwise::core::Fence;

/// Takes 10 from the account, if this worker still has its claim on the slot and the balance has not changed meanwhile.
async fn pay(bank: &Client, account: &str, sharding: &ShardingService, fence: Fence) -> Result<Paid> {
    let mut bank = bank.kv_client();
    // The revision that created the claim's key is its epoch, above the policy's `epoch_floor`. The key expires with its holder's lease.
    let claim = format!("/shardwise/v1/claims/{}/slots/{}", sharding.group_name(), fence.slot);
    let created = i64::try_from(fence.epoch.get() - sharding.policy().epoch_floor)?;
    loop {
        let found = bank.get(account, None).await?;
        let entry = found.kvs().first().ok_or("there is no such account")?;
        let (left, seen) = (entry.value_str()?.parse::<i64>()? - 10, entry.mod_revision());
        let mine = Compare::create_revision(claim.as_str(), CompareOp::Equal, created);
        let same = Compare::mod_revision(account, CompareOp::Equal, seen);
        let put = TxnOp::put(account, left.to_string(), None);
        let read = TxnOp::get(claim.as_str(), None);
        let answer = bank.txn(Txn::new().when([mine, same]).and_then([put]).or_else([read])).await?;
        if answer.succeeded() {
            return Ok(Paid::Left(left));
        }
        let Some(etcd_client::TxnOpResponse::Get(there)) = answer.op_responses().pop() else { return Err("an odd answer".into()) };
        match there.kvs().first().map(etcd_client::KeyValue::create_revision) {
            // Only the balance was another one: try again.
            Some(revision) if revision == created => {}
            Some(revision) => {
                return Ok(Paid::Refused(format!("the claim on slot {} was made at {revision}, not at {created}", fence.slot)));
            }
            None => return Ok(Paid::Refused(format!("the claim on slot {} is gone", fence.slot))),
        }
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let place = RunFolder::new()?;
    let endpoint = std::env::var("ETCD_ENDPOINT").unwrap_or_else(|_| "http://127.0.0.1:2379".into());
    let bank = Client::connect([&endpoint], None).await?;
    let account = format!("shardwise-example/{}/{ACCOUNT}", place.group());
    if place.is_new() {
        bank.kv_client().put(account.as_str(), BALANCE.to_string(), None).await?;
    }
    let settings = format!("{}backend = \"etcd\"\netcd.endpoints = [{endpoint:?}]\n", place.policy());
    let outcome = paused::run(place, &settings, async |sharding, fence| pay(&bank, &account, sharding, fence).await).await;
    Ok(outcome)
}
