//! What the processes of the crowd have written, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use serde_json::Value;

/// What all members of a process saw last.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) members: usize,
    pub(crate) fingerprint: String,
    pub(crate) at: u64,
}

/// The lines of one process, over its restarts.
pub(crate) struct Told {
    lines: BufReader<File>,
    partial: String,
    pub(crate) seen: Option<Seen>,
}

/// The time in which a slot was held under an epoch.
#[derive(Default)]
struct Tenure {
    ids: BTreeSet<String>,
    /// By the end of the first look at it, and by the begin of the last one: nothing here is later or earlier than it was.
    first: u64,
    last: u64,
}

/// A process's resource use: at its first and its last line of it.
struct Life {
    processor_us: [u64; 2],
    /// Each with its time, in seconds and bytes.
    memory: Vec<(f64, f64)>,
}

/// What all processes have written so far.
#[derive(Default)]
pub(crate) struct Judge {
    tenures: BTreeMap<(u32, u64), Tenure>,
    pub(crate) entered: usize,
    /// Members whose leases have ended.
    pub(crate) fenced: Vec<String>,
    lives: BTreeMap<u64, Life>,
}

impl Told {
    pub(crate) fn open(folder: &Path, process: &str) -> Self {
        let path = folder.join(format!("{process}.crowd"));
        let file = File::options().create(true).append(true).read(true).open(path).unwrap();
        Self { lines: BufReader::new(file), partial: String::new(), seen: None }
    }

    /// Reads what it has written since.
    pub(crate) fn catch_up(&mut self, judge: &mut Judge) {
        // A line that is not whole yet is read on later.
        while self.lines.read_line(&mut self.partial).unwrap() > 0 && self.partial.ends_with('\n') {
            let line: Value = serde_json::from_str(&self.partial).unwrap();
            self.partial.clear();
            let at = line["at"].as_u64().unwrap_or_default();
            match line["seen"].as_u64() {
                Some(members) => {
                    let fingerprint = line["fingerprint"].as_str().unwrap().to_owned();
                    self.seen = Some(Seen { members: usize::try_from(members).unwrap(), fingerprint, at });
                }
                None => judge.take(&line, at),
            }
        }
    }
}

impl Judge {
    fn take(&mut self, line: &Value, at: u64) {
        let tenure = |what: &str| {
            let slot = u32::try_from(line[what].as_u64()?).ok()?;
            Some((slot, line["epoch"].as_u64()?))
        };
        if let Some(of) = tenure("entered") {
            self.entered += 1;
            let tenure = self.tenures.entry(of).or_insert_with(|| Tenure { first: at, ..Tenure::default() });
            tenure.first = tenure.first.min(at);
            tenure.ids.insert(line["id"].as_str().unwrap().to_owned());
        } else if let Some(of) = tenure("left") {
            let tenure = self.tenures.entry(of).or_default();
            tenure.last = tenure.last.max(at);
        } else if let Some(id) = line["fenced"].as_str() {
            self.fenced.push(id.to_owned());
        } else if let Some(life) = line["life"].as_u64() {
            let (processor, memory) = (line["processor_us"].as_u64().unwrap(), line["memory"].as_f64().unwrap());
            let life = self.lives.entry(life).or_insert_with(|| Life { processor_us: [processor; 2], memory: Vec::new() });
            life.processor_us[1] = processor;
            life.memory.push((at as f64 / 1e9, memory));
        }
    }

    /// Slots that two members held under one epoch, and slots that were held under an epoch after somebody held them under a higher one.
    /// Only of exclusive ownership.
    pub(crate) fn overlaps(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut before = (u32::MAX, 0);
        for ((slot, epoch), tenure) in &self.tenures {
            if tenure.ids.len() > 1 {
                found.push(format!("slot {slot} under epoch {epoch}: {:?}", tenure.ids));
            }
            if before.0 == *slot && before.1 > tenure.first {
                found.push(format!("slot {slot} was held under a lower epoch {} ns after it was under {epoch}", before.1 - tenure.first));
            }
            let latest = if before.0 == *slot { before.1.max(tenure.last) } else { tenure.last };
            before = (*slot, latest);
        }
        found
    }

    /// The processor time of all processes so far.
    pub(crate) fn processor_us(&self) -> u64 {
        self.lives.values().map(|life| life.processor_us[1] - life.processor_us[0]).sum()
    }

    /// How fast the memory of a process grows, in KiB an hour: of those that lived since then, the one that grows fastest.
    pub(crate) fn memory_slope(&self, since: f64) -> Option<f64> {
        let lasting = self.lives.values().filter(|life| life.memory.first().is_some_and(|(at, _)| *at < since));
        let slopes = lasting.filter_map(|life| {
            let later: Vec<_> = life.memory.iter().copied().filter(|(at, _)| *at >= since).collect();
            slope(&later)
        });
        slopes.max_by(f64::total_cmp).map(|bytes_a_second| bytes_a_second * 3_600.0 / 1_024.0)
    }
}

/// The slope of the line with the least squares.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let (up, down) = points.iter().fold((0.0, 0.0), |(up, down), point| {
        let dx = point.0 - x;
        (up + dx * (point.1 - y), down + dx * dx)
    });
    (points.len() > 2 && down > 0.0).then_some(up / down)
}

#[test]
fn a_slot_held_under_a_lower_epoch_after_a_higher_one_is_an_overlap_and_a_change_of_hands_is_none() {
    let lines = |lines: &[Value]| {
        let mut judge = Judge::default();
        for line in lines {
            judge.take(line, line["at"].as_u64().unwrap());
        }
        judge.overlaps().len()
    };
    let entered = |epoch: u64, id: &str, at: u64| serde_json::json!({ "entered": 1, "epoch": epoch, "id": id, "at": at });
    let left = |epoch: u64, at: u64| serde_json::json!({ "left": 1, "epoch": epoch, "at": at });
    assert_eq!(lines(&[entered(5, "a", 10), left(5, 20), entered(6, "b", 21), left(6, 30)]), 0);
    assert_eq!(lines(&[entered(5, "a", 10), entered(6, "b", 21), left(5, 22)]), 1);
    assert_eq!(lines(&[entered(5, "a", 10), left(5, 12), entered(5, "b", 21)]), 1);
    // Not the neighbour alone.
    assert_eq!(lines(&[entered(5, "a", 10), left(5, 40), entered(6, "b", 41), entered(7, "c", 30)]), 1);
}

#[test]
fn the_slope_is_that_of_a_line_through_noise() {
    assert_eq!(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]), Some(2.0));
    assert_eq!(slope(&[(0.0, 1.0), (1.0, 3.0)]), None);
}
