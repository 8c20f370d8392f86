//! What has been seen of each group's index, so that a view never goes back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwise_core::{GroupName, Moment};

use crate::error::{Failure, Result};

/// The most groups that one backend reads.
pub const GROUPS_MAX: usize = 1_024;

/// What has been seen of each group's index.
#[derive(Default)]
pub(crate) struct GroupIndexes(Mutex<Tracks>);

#[derive(Default)]
struct Tracks {
    by_group: HashMap<GroupName, Arc<Mutex<Track>>>,
    /// The highest revision that was given of a group that is forgotten.
    forgotten: u64,
}

/// A group that is being read. It is not forgotten while this exists, in its followers and in every read under way.
pub(crate) type TrackedGroup = Arc<Mutex<Track>>;

#[derive(Default)]
pub(crate) struct Track {
    /// The offset to Consul's index, so that revisions rise although the index has fallen, or the group was forgotten.
    base: u64,
    highest: u64,
    /// When the answer with the highest index had arrived.
    arrived: Moment,
}

impl Track {
    /// The revision for an index, or `None` if a newer answer has overtaken this one. A smaller index than before in an answer that was
    /// asked for after that one had arrived means that the servers lost or replaced their data.
    pub(crate) fn revision(&mut self, index: u64, started: Moment, arrived: Moment) -> Option<u64> {
        if index < self.highest {
            if started < self.arrived {
                return None;
            }
            self.base += self.highest - index + 1;
        }
        if index != self.highest {
            (self.highest, self.arrived) = (index, arrived);
        }
        Some(self.base + index)
    }
}

pub(crate) fn locked(track: &Mutex<Track>) -> MutexGuard<'_, Track> {
    track.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GroupIndexes {
    /// If there is no room, groups without readers are forgotten. A group that is read again later begins above every revision given
    /// before, so its revisions still rise.
    pub(crate) fn of(&self, group: &GroupName) -> Result<TrackedGroup> {
        let mut tracks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Tracks { by_group, forgotten } = &mut *tracks;
        if by_group.len() >= GROUPS_MAX && !by_group.contains_key(group) {
            by_group.retain(|_, track| {
                let is_read = Arc::strong_count(track) > 1;
                if !is_read {
                    let track = locked(track);
                    *forgotten = (*forgotten).max(track.base + track.highest);
                }
                is_read
            });
            if by_group.len() >= GROUPS_MAX {
                return Err(Failure::TooManyGroups { max: GROUPS_MAX });
            }
        }
        let begun = || Arc::new(Mutex::new(Track { base: *forgotten, ..Track::default() }));
        Ok(Arc::clone(by_group.entry(group.clone()).or_insert_with(begun)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn an_index_that_falls_raises_the_revision() {
        let mut track = Track::default();
        assert_eq!(track.revision(100, at(1), at(2)), Some(100));
        assert_eq!(track.revision(7, at(3), at(4)), Some(101), "the servers lost their data");
        assert_eq!(track.revision(7, at(5), at(6)), Some(101));
        assert_eq!(track.revision(9, at(7), at(8)), Some(103));
        assert_eq!(track.revision(1, at(9), at(10)), Some(104), "and again");
    }

    fn group(n: usize) -> GroupName {
        GroupName::new(format!("g{n}")).unwrap()
    }

    fn seen(tracked: &TrackedGroup, index: u64, second: u64) -> u64 {
        locked(tracked).revision(index, at(second), at(second)).unwrap()
    }

    /// After 1,024 different groups in the life of a process every further one was refused for good.
    #[test]
    fn groups_that_are_not_read_make_room_and_their_revisions_rise_all_the_same() {
        let revisions = GroupIndexes::default();
        let followed = revisions.of(&group(0)).unwrap();
        assert_eq!(seen(&followed, 50, 1), 50);
        for n in 1..GROUPS_MAX * 3 {
            assert!(seen(&revisions.of(&group(n)).unwrap(), 100 + n as u64, 2) >= 100 + n as u64);
        }
        assert!(revisions.0.lock().unwrap().by_group.len() <= GROUPS_MAX);
        assert_eq!(seen(&followed, 51, 3), 51);
        assert_eq!(seen(&revisions.of(&group(0)).unwrap(), 52, 4), 52, "somebody has read it all the time");
        let again = revisions.of(&group(1)).unwrap();
        let forgotten = revisions.0.lock().unwrap().forgotten;
        assert!(forgotten >= 101);
        assert_eq!([1, 2, 1].map(|index| seen(&again, index, 5)), [1, 2, 3].map(|n| forgotten + n), "above what it was given before");
    }

    #[test]
    fn groups_that_are_read_keep_their_place() {
        let revisions = GroupIndexes::default();
        let all: Vec<_> = (0..GROUPS_MAX).map(|n| revisions.of(&group(n)).unwrap()).collect();
        assert!(matches!(revisions.of(&group(GROUPS_MAX)), Err(Failure::TooManyGroups { .. })));
        assert!(revisions.of(&group(7)).is_ok());
        drop(all);
        assert!(revisions.of(&group(GROUPS_MAX)).is_ok());
    }

    #[test]
    fn a_list_that_was_overtaken_is_no_fall() {
        let mut track = Track::default();
        assert_eq!(track.revision(100, at(1), at(5)), Some(100));
        assert_eq!(track.revision(99, at(4), at(6)), None);
        assert_eq!(track.revision(100, at(4), at(6)), Some(100));
    }
}
