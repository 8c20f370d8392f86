//! Members that join, leave, die and reconnect at random: in the end no member is lost, and none is a phantom.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Fleet, PACE, TTL, backend, bucket, eventually, group, ids, registration, shared};
use shardwise_discovery::Discovery;
use shardwise_testkit::TcpProxy;

/// As many as take two minutes; `SHARDWISE_CHURN` asks for more.
const STEPS: u64 = 300;

/// A small generator of the test's own, so that a seed repeats a run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_lost_and_nobody_is_a_phantom() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, steps) = (number("SHARDWISE_SEED").unwrap_or(0x5eed), number("SHARDWISE_CHURN").unwrap_or(STEPS));
    println!("SHARDWISE_SEED={seed} SHARDWISE_CHURN={steps}");
    let mut dice = Dice(seed | 1);
    let (server, bucket) = (shared().await, bucket());
    let mut proxies = Vec::new();
    for _ in 0..3 {
        proxies.push(TcpProxy::start(server.socket_addr()).await.unwrap());
    }
    let processes: Vec<_> = proxies.iter().map(|proxy| backend(&format!("nats://{}", proxy.address()), &bucket)).collect();
    let outside = backend(&server.address(), &bucket);
    let (mut fleet, mut there, mut incarnation) = (Fleet::new(), BTreeMap::new(), 0);
    for _ in 0..steps {
        let process = usize::try_from(dice.below(3)).unwrap();
        match dice.below(10) {
            0..=4 if there.len() < 40 => {
                incarnation += 1;
                let id = format!("m{incarnation:04}");
                // A process whose connection was just reset answers a little later.
                let joining = registration(&id, incarnation);
                eventually("a registration", async || processes[process].register(&joining).await.ok()).await;
                fleet.join(&processes[process], &id, incarnation).await;
                there.insert(id, (process, incarnation));
            }
            5 | 6 => {
                let Some((id, (process, incarnation))) = there.pop_first() else { continue };
                fleet.kill(&id);
                let leaving = registration(&id, incarnation).record_id();
                eventually("a farewell", async || processes[process].deregister(&leaving).await.ok()).await;
            }
            7 => {
                let Some((id, _)) = there.pop_last() else { continue };
                fleet.kill(&id);
            }
            _ => {
                proxies[process].reset();
                tokio::time::sleep(TTL / 60).await;
            }
        }
    }
    let expected: BTreeSet<_> = there.keys().cloned().collect();
    let mut watch = outside.watch(&group(), PACE);
    let expected_ids: Vec<_> = expected.iter().map(String::as_str).collect();
    common::view_of(&mut watch, &expected_ids).await;
    for process in processes.iter().chain([&outside]) {
        let view = eventually("a view", async || process.members(&group()).await.ok()).await.view;
        assert_eq!(ids(&view), expected_ids);
    }
    assert_eq!(fleet.lost(), 0, "a member that renews was evicted");
}
