//! The possible steps and their effects: the rules of the store and of members.

use crate::state::{Hold, Member, Renewal, State};

/// A mistake inserted on purpose; the model must find each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The deadline counts from the answer instead of from the request.
    DeadlineFromAnswer,
    /// A claim is released while work is in flight.
    ReleaseBeforeDrain,
    /// The epoch belongs to the member instead of the acquisition.
    EpochPerMember,
    /// A release names the holder, but not the epoch.
    ReleaseByHolder,
    /// A deregistration deletes the record by name, even that of a later incarnation.
    DeleteByName,
}

/// Durations, in ticks, and the inserted mistake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The life of a record in the store, without renewal.
    pub(crate) ttl: u8,
    /// Ownership from the start of a renewal, by the member's clock.
    pub(crate) owned_for: u8,
    /// Releases may be carried out after their caller abandoned and repeated them.
    pub(crate) late: bool,
    pub(crate) mistake: Option<Mistake>,
}

/// One step of one member. A member that takes none while time passes is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes; the clocks of these members (a bitmap) miss the tick.
    Tick(u8),
    /// A registration or renewal is sent and carried out. A delay would only prolong the record.
    Renew(u8),
    Answered(u8),
    AnswerLost(u8),
    /// The process dies, and another one starts in its place.
    Dies(u8),
    /// A free slot is acquired, whatever the placement.
    Acquire(u8, u8),
    /// A free slot is acquired, and the answer is lost.
    AcquireUnheard(u8, u8),
    Drain(u8, u8),
    Release(u8, u8),
    /// A release is sent, not answered, and carried out later.
    ReleaseUnheard(u8, u8),
    /// The late release is carried out.
    LateRelease,
    /// A former incarnation's request to delete its record is carried out.
    Deregister(u8),
    /// Work starts.
    Enter(u8, u8),
    /// Work writes and ends.
    Write(u8),
    /// A write of lost work arrives.
    StaleWrite,
}

impl Rules {
    /// Every step that is possible in `state`.
    pub(crate) fn steps<const M: usize, const S: usize>(self, state: &State<M, S>, steps: &mut Vec<Step>) {
        let numbers = |n: usize| 0..u8::try_from(n).unwrap_or_default();
        let ticks = 0..1_u8 << M;
        let all = ticks.map(Step::Tick).chain([Step::StaleWrite, Step::LateRelease]).chain(numbers(M).flat_map(|m| {
            let own = [Step::Renew(m), Step::Answered(m), Step::AnswerLost(m), Step::Dies(m), Step::Deregister(m), Step::Write(m)];
            let slots = numbers(S).flat_map(move |s| {
                let given_back = [Step::Drain(m, s), Step::Release(m, s), Step::ReleaseUnheard(m, s)];
                [Step::Acquire(m, s), Step::AcquireUnheard(m, s), Step::Enter(m, s)].into_iter().chain(given_back)
            });
            own.into_iter().chain(slots)
        }));
        steps.extend(all.filter(|step| self.allows(state, *step)));
    }

    /// Whether this step is possible here.
    pub(crate) fn allows<const M: usize, const S: usize>(self, state: &State<M, S>, step: Step) -> bool {
        let of = |m: u8| &state.members[usize::from(m)];
        let hold = |m: u8, s: u8| of(m).holds[usize::from(s)].filter(|_| of(m).left > 0);
        let acquires = |m: u8, s: u8| of(m).left > 0 && of(m).lease > 0 && state.claims[usize::from(s)].is_none();
        match step {
            Step::Tick(missing) => state.members.iter().enumerate().all(|(m, member)| missing & (1 << m) == 0 || member.misses()),
            Step::Renew(m) => of(m).renewal.is_none() && !of(m).reborn,
            Step::Answered(m) | Step::AnswerLost(m) => of(m).renewal.is_some(),
            Step::LateRelease => state.late.is_some(),
            Step::Deregister(m) => of(m).lease > 0 && (of(m).reborn || self.mistake == Some(Mistake::DeleteByName)),
            Step::Dies(m) => !of(m).reborn && of(m).lease > 0,
            Step::Acquire(m, s) | Step::AcquireUnheard(m, s) => acquires(m, s) && of(m).holds[usize::from(s)].is_none(),
            Step::Drain(m, s) => hold(m, s).is_some_and(|hold| !hold.draining),
            Step::ReleaseUnheard(_, _) if !self.late || state.late.is_some() => false,
            Step::Release(m, s) | Step::ReleaseUnheard(m, s) => {
                let is_mine = of(m).left > 0 && state.claims[usize::from(s)].is_some_and(|(holder, _)| holder == m);
                let works = of(m).work.is_some_and(|(slot, _)| slot == s) && self.mistake != Some(Mistake::ReleaseBeforeDrain);
                is_mine && hold(m, s).is_none_or(|hold| hold.draining && !works)
            }
            Step::Enter(m, s) => of(m).work.is_none() && hold(m, s).is_some_and(|hold| !hold.draining),
            Step::Write(m) => of(m).work.is_some(),
            Step::StaleWrite => state.stale_write.is_some(),
        }
    }

    /// The state after a possible step.
    pub(crate) fn after<const M: usize, const S: usize>(self, state: &State<M, S>, step: Step) -> State<M, S> {
        let mut next = state.clone();
        match step {
            Step::Tick(missing) => (0..M).for_each(|m| self.tick(&mut next, m, missing & (1 << m) != 0)),
            Step::Renew(m) => {
                let member = &mut next.members[usize::from(m)];
                (member.lease, member.renewal) = (self.ttl, Some(Renewal { age: 0, missed: false }));
            }
            Step::Answered(m) => self.answered(&mut next.members[usize::from(m)]),
            Step::AnswerLost(m) => next.members[usize::from(m)].renewal = None,
            Step::Dies(m) => next.dies(usize::from(m)),
            Step::Acquire(m, s) => {
                let epoch = self.acquire(&mut next, m, s);
                next.members[usize::from(m)].holds[usize::from(s)] = Some(Hold { epoch, draining: false });
            }
            Step::AcquireUnheard(m, s) => {
                self.acquire(&mut next, m, s);
            }
            Step::Drain(m, s) => {
                if let Some(hold) = &mut next.members[usize::from(m)].holds[usize::from(s)] {
                    hold.draining = true;
                }
            }
            Step::Release(m, s) => (next.claims[usize::from(s)], next.members[usize::from(m)].holds[usize::from(s)]) = (None, None),
            Step::ReleaseUnheard(m, s) => {
                next.late = next.claims[usize::from(s)].map(|(_, epoch)| (m, s, epoch));
                next.members[usize::from(m)].holds[usize::from(s)] = None;
            }
            Step::LateRelease => {
                if let Some((m, s, epoch)) = next.late.take() {
                    let meant = |(holder, held): (u8, u8)| holder == m && (held == epoch || self.mistake == Some(Mistake::ReleaseByHolder));
                    let claim = &mut next.claims[usize::from(s)];
                    *claim = claim.filter(|claim| !meant(*claim));
                }
            }
            Step::Deregister(m) => next.delete(m),
            Step::Enter(m, s) => {
                let member = &mut next.members[usize::from(m)];
                member.work = member.holds[usize::from(s)].map(|hold| (s, hold.epoch));
            }
            Step::Write(m) => {
                let work = next.members[usize::from(m)].work.take();
                next.write(work);
            }
            Step::StaleWrite => {
                let stale_write = next.stale_write.take();
                next.write(stale_write);
            }
        }
        if self.mistake != Some(Mistake::EpochPerMember) {
            next.rank();
        }
        next
    }

    fn tick<const M: usize, const S: usize>(self, state: &mut State<M, S>, m: usize, missed: bool) {
        let member = &mut state.members[m];
        member.lease = member.lease.saturating_sub(1);
        if member.lease == 0 {
            member.reborn = false;
            state.claims.iter_mut().for_each(|claim| *claim = claim.filter(|(holder, _)| usize::from(*holder) != m));
        }
        if missed {
            member.may_miss = false;
            member.renewal.iter_mut().for_each(|renewal| renewal.missed = true);
            return;
        }
        if let Some(renewal) = &mut member.renewal {
            renewal.age += 1;
        }
        // An answer this late is useless, except with the mistake of counting from the answer; after that it is lost.
        let useful = if self.mistake == Some(Mistake::DeadlineFromAnswer) { self.ttl } else { self.owned_for };
        member.renewal = member.renewal.filter(|renewal| renewal.age < useful);
        if member.left == 1 {
            state.end(m);
        }
        state.members[m].left = state.members[m].left.saturating_sub(1);
    }

    fn answered<const S: usize>(self, member: &mut Member<S>) {
        let Some(Renewal { age, missed }) = member.renewal.take() else { return };
        let age = if self.mistake == Some(Mistake::DeadlineFromAnswer) { 0 } else { age };
        let left = self.owned_for.saturating_sub(age);
        if left > member.left {
            (member.left, member.may_miss) = (left, !missed);
        }
    }

    /// The store grants it, under an epoch above all earlier ones.
    fn acquire<const M: usize, const S: usize>(self, state: &mut State<M, S>, m: u8, s: u8) -> u8 {
        let epoch = if self.mistake == Some(Mistake::EpochPerMember) { m + 1 } else { state.next_epoch(usize::from(s)) };
        state.claims[usize::from(s)] = Some((m, epoch));
        epoch
    }
}

impl<const S: usize> Member<S> {
    /// Whether its clock may miss the next tick, and whether that matters.
    fn misses(&self) -> bool {
        (self.left > 0 || self.renewal.is_some()) && (self.left == 0 || self.may_miss) && self.renewal.is_none_or(|renewal| !renewal.missed)
    }
}

impl<const M: usize, const S: usize> State<M, S> {
    /// Nothing is held any more, and work in flight becomes a lost write. One lost write at a time.
    fn end(&mut self, m: usize) {
        let member = &mut self.members[m];
        member.holds = [None; S];
        self.stale_write = self.stale_write.or(member.work);
        member.work = None;
    }

    fn dies(&mut self, m: usize) {
        self.end(m);
        let member = &mut self.members[m];
        (member.left, member.may_miss, member.renewal, member.reborn) = (0, false, None, true);
    }

    /// The record is gone, and every claim with it.
    fn delete(&mut self, m: u8) {
        let member = &mut self.members[usize::from(m)];
        (member.lease, member.reborn) = (0, false);
        self.claims.iter_mut().for_each(|claim| *claim = claim.filter(|(holder, _)| *holder != m));
    }

    /// The user's table accepts a write unless it has seen a higher epoch.
    fn write(&mut self, write: Option<(u8, u8)>) {
        if let Some((slot, epoch)) = write {
            let highest = &mut self.table[usize::from(slot)];
            *highest = epoch.max(*highest);
        }
    }
}
