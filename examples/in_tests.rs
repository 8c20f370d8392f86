//! A test of your own: does my worker do every job exactly once when another one dies?
//!
//! `cargo test -p shardwise-examples --example in_tests`. Time is paused, so waiting for a TTL takes no time.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use shardwise::Sharding;

/// The code under test: generic, so that tests can pass any service.
fn jobs_for_me(sharding: &impl Sharding, jobs: &[u64]) -> Vec<u64> {
    sharding.filter_owned_items(jobs).into_iter().copied().collect()
}

fn main() {
    let sharding = shardwise::ShardingService::frozen(["worker-0", "worker-1"], "worker-0");
    let jobs: Vec<u64> = (0..1_000).collect();
    println!("of 1,000 jobs worker-0 does {}", jobs_for_me(&sharding, &jobs).len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwise::ShardingService;
    use shardwise::testing::TestFleet;

    #[test]
    fn a_frozen_share_is_the_same_every_time() {
        let jobs: Vec<u64> = (0..100).collect();
        let shares = ["a", "b"].map(|me| jobs_for_me(&ShardingService::frozen(["a", "b"], me), &jobs));
        let mut all = shares.concat();
        all.sort_unstable();
        assert_eq!(all, jobs);
    }

    #[tokio::test(start_paused = true)]
    async fn every_job_is_done_by_one_worker_after_a_crash_too() {
        let jobs: Vec<u64> = (0..100).collect();
        let mut fleet = TestFleet::start(3).await;
        fleet.kill(1);
        fleet.settled().await;
        let mut all: Vec<u64> = [0, 2].into_iter().flat_map(|i| jobs_for_me(fleet.service(i), &jobs)).collect();
        all.sort_unstable();
        assert_eq!(all, jobs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_was_paused_too_long_does_nothing() {
        let mut fleet = TestFleet::start(2).await;
        fleet.pause(0);
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        assert!(jobs_for_me(fleet.service(0), &[1, 2, 3]).is_empty());
        fleet.resume(0);
        fleet.settled().await;
    }
}
