//! A monitor that evaluates alert rules: each rule runs as a task on exactly the worker that owns it, and moves when the fleet changes.
//!
//! Three monitors in one process, one of which is killed; `run_owned` starts and cancels the tasks, `on_rebalance` reports the changes.
//!
//! `cargo run -p shardwise-examples --example alert_monitor`

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardwise::testing::TestFleet;

/// Which rule runs on which monitor.
type Board = Arc<Mutex<BTreeMap<String, String>>>;

fn rules() -> Vec<String> {
    ["cpu", "memory", "disk", "latency", "errors", "queue", "certificates", "backups"].map(|rule| format!("{rule}-high")).to_vec()
}

fn show(board: &Board) {
    let board = board.lock().unwrap_or_else(PoisonError::into_inner);
    for (rule, monitor) in &*board {
        println!("  {rule:<18} {monitor}");
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let mut fleet = TestFleet::start(3).await;
    let board = Board::default();

    let mut running = Vec::new();
    for i in 0..3 {
        let monitor = fleet.service(i).clone();
        let name = monitor.instance_id().to_string();
        monitor.on_rebalance({
            let name = name.clone();
            move |r| {
                println!(
                    "{name}: {} members, {} slots ({} gained, {} lost)",
                    r.members_total,
                    r.slots_owned.unwrap_or_default(),
                    r.gained.len(),
                    r.lost.len()
                );
            }
        });
        let board = Arc::clone(&board);
        running.push(monitor.run_owned(rules(), move |rule, cancel| {
            let (board, name) = (Arc::clone(&board), name.clone());
            async move {
                board.lock().unwrap_or_else(PoisonError::into_inner).insert(rule, name);
                // A real monitor would evaluate its rule here, every few seconds, until it is cancelled.
                cancel.cancelled().await;
            }
        }));
    }
    // Time is paused: this takes no time, but lets the tasks start.
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("three monitors:");
    show(&board);

    fleet.kill(0);
    fleet.settled().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("worker-0 was killed; one TTL later:");
    show(&board);
}
