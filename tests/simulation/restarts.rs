//! A restart in good order, with nothing wrong: with `rejoin_grace` nothing moves.

use std::time::Duration;

use rand::RngExt;
use shardwise::core::{NameOwners, Resource, SlotOwners, VersionRule};

use crate::judge::{Held, Pinned, held};
use crate::life::Life;
use crate::worker::{TTL, Worker};

/// For leaving, and for joining and taking back what was its own.
const WITHIN: Duration = Duration::from_secs(7);
const POLL_EVERY: Duration = Duration::from_millis(100);

impl Life {
    /// A member leaves in good order and comes back. Where members that are away keep their places, the others hold the same as before
    /// all the time, none takes what the leaver held, and in the end the leaver holds all of it again. While versions differ, some of it
    /// may go elsewhere, as without a rejoin grace: then the only rule is that nothing has two holders.
    pub(crate) async fn one_is_restarted(&mut self) -> Result<(), String> {
        let staying: Vec<_> = (0..self.workers.len()).filter(|number| self.workers[*number].stays()).collect();
        if self.group.policy.rejoin_grace.is_zero() || staying.len() < 2 {
            return Ok(());
        }
        let leaver = staying[self.dice.random_range(0..staying.len())];
        let (id, version) = (self.workers[leaver].id.clone(), self.workers[leaver].version);
        let pins =
            staying.iter().all(|number| self.workers[*number].version == version) || self.group.policy.version_rule == VersionRule::None;
        // A stand-in keeps its slots until the view changes; so another member joins first.
        let newest = self.new_id();
        self.joins_with(newest, version);
        self.comes_true("there when another one joins", |life| life.is_settled() && life.is_renewed() && (!pins || life.is_placed()))
            .await?;
        let before = held(&self.workers);
        if pins {
            self.judge.pinned = Some(Pinned { before: before.clone(), restarted: vec![leaver, self.workers.len()] });
        }
        self.workers[leaver].leaves();
        self.comes_true("left", |life| life.workers[leaver].has_left()).await?;
        let away = TTL.mul_f64(self.dice.random_range(0.0..2.0));
        self.passes(away).await?;
        self.workers[leaver].dies();
        self.joins_with(id, version);
        let back = self.workers.len() - 1;
        let of =
            |held: &Held, of: usize| held.iter().filter(|(_, (number, _))| *number == of).map(|(what, _)| what.clone()).collect::<Vec<_>>();
        let had = of(&before, leaver);
        self.comes_true("back where it was", |life| life.is_settled() && (!pins || of(&held(&life.workers), back) == had)).await?;
        if self.judge.pinned.take().is_some() {
            self.happened("restarts in good order that move nothing");
        }
        Ok(())
    }

    /// Whether every lease has been renewed since the faults.
    fn is_renewed(&self) -> bool {
        // By its own clock, which does not show the simulation's time.
        let is_renewed =
            |worker: &Worker| worker.service().ownership().deadline().is_some_and(|ends| ends > worker.service().now().plus(TTL / 2));
        self.workers.iter().filter(|worker| worker.stays()).all(is_renewed)
    }

    /// Whether everything is held by whom the placement gives it to.
    fn is_placed(&self) -> bool {
        let Some(view) = self.workers.iter().find(|worker| worker.stays()).map(|worker| worker.service().members()) else { return false };
        let (params, names) = (self.group.policy.placement, self.names());
        let (slots, named) = (SlotOwners::of_view(&view, params), NameOwners::of_view(&view, params, &names));
        let slots = (0..params.slots).map(|slot| (Resource::Slot(slot), slots.owner_of_slot(slot)));
        let named = names.iter().map(|name| (Resource::Name(name.clone()), named.owner(name)));
        let held = held(&self.workers);
        slots.chain(named).all(|(what, owner)| held.get(&what).map(|(number, _)| &self.workers[*number].id) == owner)
    }

    async fn comes_true(&mut self, what: &str, is_true: impl Fn(&Self) -> bool) -> Result<(), String> {
        let begun = self.now();
        while !is_true(self) {
            let waited = self.now().since(begun);
            if waited > WITHIN {
                return Err(format!("a worker that was restarted in good order is not {what} after {waited:?}: {}", self.summary()));
            }
            self.passes(POLL_EVERY).await?;
        }
        Ok(())
    }
}

impl Worker {
    pub(crate) fn has_left(&self) -> bool {
        self.service().state() == shardwise::ServiceState::Left
    }
}
