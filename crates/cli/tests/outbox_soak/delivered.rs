//! The delivered events, as lines of a file.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardwise_outbox::sink::read_events;

use crate::stage::{Stage, Written};

const FILE: &str = "delivered.jsonl";

/// The number of events in the file.
pub(crate) fn lines(stage: &Stage) -> usize {
    read_events(stage.place.path(FILE)).unwrap().count()
}

/// Counts the delivered events, the repeats, and the repeats after the first `before` lines. Panics if an aggregate's first deliveries are
/// not in the order of their sequences.
pub(crate) fn delivered(stage: &Stage, before: usize) -> (u64, u64, u64) {
    let (mut seen, mut last) = (HashSet::new(), BTreeMap::<String, u64>::new());
    let (mut again, mut again_later) = (0, 0);
    for (line, event) in read_events(stage.place.path(FILE)).unwrap().map(Result::unwrap).enumerate() {
        if seen.insert(event.id) {
            let former = last.insert(event.key.clone(), event.sequence).unwrap_or(0);
            assert!(event.sequence > former, "out of order: {} {} after {former}", event.key, event.sequence);
        } else {
            again += 1;
            again_later += u64::from(line >= before);
        }
    }
    (seen.len() as u64, again, again_later)
}

/// The ids of events as they arrive.
pub(crate) struct NewEvents {
    file: File,
    torn: Vec<u8>,
}

impl NewEvents {
    pub(crate) fn behind_the_last(stage: &Stage) -> Self {
        let mut file = File::open(stage.place.path(FILE)).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        Self { file, torn: Vec::new() }
    }

    /// The ids since the last call; an incomplete line comes later.
    pub(crate) fn read(&mut self) -> Vec<String> {
        self.file.read_to_end(&mut self.torn).unwrap();
        let whole = self.torn.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.torn.drain(..whole).collect();
        // The first line may be incomplete at its beginning and is then not an event.
        let id = |line: &[u8]| Some(serde_json::from_slice::<serde_json::Value>(line).ok()?["id"].as_str()?.to_owned());
        lines.split(|byte| *byte == b'\n').filter_map(id).collect()
    }
}

/// The oldest event seen in one check, and how long before the check it was committed.
pub(crate) struct Late {
    at: Instant,
    age: Duration,
}

/// The longest time from commit to delivery, for events committed until that moment and for later ones.
pub(crate) fn longest(late: &[Late], until: Instant) -> [Duration; 2] {
    [true, false]
        .map(|before| late.iter().filter(|late| (late.at <= until + late.age) == before).map(|late| late.age).max().unwrap_or_default())
}

/// Watches until everything has arrived; returns the oldest event of each check.
pub(crate) fn slowest(mut new_events: NewEvents, written: &Written, over: &Arc<AtomicBool>) -> JoinHandle<Vec<Late>> {
    let (written, over) = (written.clone(), Arc::clone(over));
    std::thread::spawn(move || {
        let mut late: Vec<Late> = Vec::new();
        while !over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
            // An event that arrives before its writer knows of the commit has not waited.
            let ages = new_events.read().iter().filter_map(|id| written.age(id)).max();
            late.extend(ages.map(|age| Late { at: Instant::now(), age }));
        }
        assert!(!late.is_empty(), "no event tells when it was written");
        late
    })
}
