//! The model of the store: records with beats, evictions under a condition, and claims that end with their holder's record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shardwise_core::{GroupName, Incarnation, InstanceId};
use shardwise_discovery::RecordId;
use shardwise_discovery::silence::SeenRecord;

use crate::process::TTL;

/// The wall clock's reading at the beginning: so much that it can jump back.
pub(crate) const WALL_BEGINS: u64 = 10_000_000_000_000;

/// One life of the member with that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LifeId {
    pub(crate) name: usize,
    pub(crate) incarnation: u64,
}

impl LifeId {
    pub(crate) fn record(self) -> RecordId {
        RecordId {
            group: GroupName::new("group").expect("valid"),
            instance_id: InstanceId::new(format!("m{}", self.name)).expect("valid"),
            incarnation: Incarnation::new(self.incarnation),
        }
    }

    pub(crate) fn of(record: &RecordId) -> Self {
        let name = record.instance_id.as_str().trim_start_matches('m').parse().expect("a number");
        Self { name, incarnation: record.incarnation.get() }
    }
}

/// What the store shows of a record.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) seen: SeenRecord,
    /// Since its last renewal, by the store's wall clock.
    pub(crate) age: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Kept,
    Lost,
    /// Another life has the name.
    InUse(LifeId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    Granted,
    HeldBy(LifeId),
    /// The asking life has no record.
    NoRecord,
}

#[derive(Debug)]
pub(crate) struct Row {
    seen: SeenRecord,
    life: LifeId,
    beat: u64,
    /// By the store's wall clock.
    written: u64,
    pub(crate) created: u64,
    pub(crate) renewed: u64,
}

#[derive(Debug)]
pub(crate) struct Store {
    /// One number for all records, so that no beat repeats for any.
    beats: u64,
    pub(crate) rows: BTreeMap<usize, Row>,
    claims: BTreeMap<usize, LifeId>,
    /// What the wall clock adds to the truth.
    pub(crate) wall_ahead: u64,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { beats: 0, rows: BTreeMap::new(), claims: BTreeMap::new(), wall_ahead: WALL_BEGINS }
    }

    /// A renewal, or a registration, which is a renewal if the record is there.
    pub(crate) fn write(&mut self, by: LifeId, registers: bool, now: u64) -> WriteOutcome {
        let created = match self.rows.get(&by.name) {
            Some(row) if row.life == by => row.created,
            Some(row) if registers => return WriteOutcome::InUse(row.life),
            None if registers => now,
            _ => return WriteOutcome::Lost,
        };
        self.beats += 1;
        let seen = SeenRecord { record: by.record(), ttl: TTL, beat: Some(self.beats) };
        let row = Row { seen, life: by, beat: self.beats, written: now + self.wall_ahead, created, renewed: now };
        self.rows.insert(by.name, row);
        // A newer life ends the claims of the former ones.
        self.claims.retain(|_, holder| holder.name != by.name || *holder == by);
        WriteOutcome::Kept
    }

    pub(crate) fn acquire(&mut self, by: LifeId, resource: usize) -> ClaimOutcome {
        if self.rows.get(&by.name).is_none_or(|row| row.life != by) {
            return ClaimOutcome::NoRecord;
        }
        let holder = *self.claims.entry(resource).or_insert(by);
        if holder == by { ClaimOutcome::Granted } else { ClaimOutcome::HeldBy(holder) }
    }

    /// The present beat of that life.
    pub(crate) fn beat(&self, life: LifeId) -> Option<u64> {
        self.rows.get(&life.name).filter(|row| row.life == life).map(|row| row.beat)
    }

    /// Whether that life has a record or claims.
    pub(crate) fn knows(&self, life: LifeId) -> bool {
        self.beat(life).is_some() || self.claims.values().any(|holder| *holder == life)
    }

    /// Deletes the record of that life and frees its claims. Returns when it was renewed last.
    pub(crate) fn end(&mut self, life: LifeId) -> Option<u64> {
        self.claims.retain(|_, holder| *holder != life);
        self.beat(life)?;
        self.rows.remove(&life.name).map(|row| row.renewed)
    }

    /// Forgets a record that it has confirmed, and the claims stay.
    pub(crate) fn lose(&mut self, name: usize) {
        self.rows.remove(&name);
    }

    pub(crate) fn lives(&self) -> BTreeSet<LifeId> {
        self.rows.values().map(|row| row.life).collect()
    }

    fn listing(&self, row: &Row, now: u64) -> Listing {
        Listing { seen: row.seen.clone(), age: Duration::from_nanos((now + self.wall_ahead).saturating_sub(row.written)) }
    }

    pub(crate) fn shown(&self, name: usize, now: u64) -> Option<Listing> {
        self.rows.get(&name).map(|row| self.listing(row, now))
    }

    pub(crate) fn list(&self, now: u64) -> Vec<Listing> {
        self.rows.values().map(|row| self.listing(row, now)).collect()
    }
}
