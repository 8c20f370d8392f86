//! One task per held slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwise::{Epoch, Run, ShardingService};

use super::{SLOTS, World, eventually, joined, share};

/// What works in each slot now, over all workers, and every epoch under which something ever did.
#[derive(Default)]
struct SlotLog {
    now: BTreeMap<u32, Epoch>,
    ever: Vec<(u32, Epoch)>,
    /// Slots in which two were at work.
    twice: Vec<u32>,
}

fn follow(service: &ShardingService, log: &Arc<Mutex<SlotLog>>, takes: Duration) -> Run {
    let log = Arc::clone(log);
    service.slots(move |slot, epoch, cancel| {
        let log = Arc::clone(&log);
        async move {
            {
                let mut log = log.lock().expect("whole");
                if log.now.insert(slot, epoch).is_some() {
                    log.twice.push(slot);
                }
                log.ever.push((slot, epoch));
            }
            cancel.cancelled().await;
            tokio::time::sleep(takes).await;
            log.lock().expect("whole").now.remove(&slot);
        }
    })
}

#[tokio::test(start_paused = true)]
async fn each_slot_has_one_task_by_any_holder() {
    let (world, log) = (World::new(), Arc::new(Mutex::new(SlotLog::default())));
    let works_everywhere = || log.lock().expect("whole").now.keys().copied().eq(0..SLOTS);
    let a = joined(&world, "a").await;
    let run_a = follow(&a, &log, Duration::from_millis(300));
    eventually("all are worked in", works_everywhere).await;
    let b = joined(&world, "b").await;
    let _run_b = follow(&b, &log, Duration::from_millis(300));
    eventually("both work", || share(&[&a, &b]) && works_everywhere()).await;
    a.deregister_self().await.expect("left");
    eventually("b works in all", || share(&[&b]) && works_everywhere()).await;
    run_a.stop().await;
    assert_eq!(log.lock().expect("whole").twice, [0; 0], "slots with two workers");
    let mut ever = log.lock().expect("whole").ever.clone();
    let count = ever.len();
    ever.sort_unstable();
    ever.dedup();
    assert_eq!(ever.len(), count, "no slot is worked in twice under one epoch");
    assert!(count > SLOTS as usize + SLOTS as usize / 2, "{count}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_ends_and_the_others_go_on() {
    let (world, begun) = (World::new(), Arc::new(Mutex::new(0)));
    let a = joined(&world, "a").await;
    let counted = Arc::clone(&begun);
    let _run = a.slots(move |slot, _, cancel| {
        *counted.lock().expect("whole") += 1;
        async move {
            assert_ne!(slot, 3, "a mistake in the user's code");
            cancel.cancelled().await;
        }
    });
    eventually("all were begun", || *begun.lock().expect("whole") == SLOTS).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(*begun.lock().expect("whole"), SLOTS, "not begun again under the same epoch");
    let b = joined(&world, "b").await;
    eventually("it moves on all the same", || share(&[&a, &b])).await;
}
