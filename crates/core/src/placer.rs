//! Placements shared by all members of one process that look at the same group: the circle is kept once, and a view is placed once.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Circle, PlacementParams, SlotOwners, View};

/// Places views and keeps the circle and the last placement, so that of a thousand members that share it one does the work.
#[derive(Debug)]
pub struct Placer {
    placing: Mutex<Placing>,
}

#[derive(Debug)]
struct Placing {
    circle: Circle,
    last: Option<Arc<SlotOwners>>,
}

impl Placer {
    /// Nothing placed so far. `params` are taken as valid (see [`PlacementParams::validated`]).
    pub fn new(params: PlacementParams) -> Self {
        Self { placing: Mutex::new(Placing { circle: Circle::new(params), last: None }) }
    }

    /// The placement of a view, as [`SlotOwners::of_view`] gives it: the last one again if it is of this view.
    pub fn place(&self, view: &View) -> Arc<SlotOwners> {
        // Whoever panicked in here left a circle that is as good as any: the next view is compared with what it holds.
        let mut placing = self.placing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = placing.last.as_ref().filter(|last| last.is_of(view)) {
            return Arc::clone(last);
        }
        let placed = Arc::new(placing.circle.place_view(view));
        placing.last = Some(Arc::clone(&placed));
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InstanceId, Member};

    fn view(members: u32) -> View {
        View::new(u64::from(members), (0..members).map(|i| Member::named(InstanceId::new(format!("worker-{i}")).unwrap())).collect())
    }

    #[test]
    fn a_view_is_placed_once_and_as_anybody_would() {
        let params = PlacementParams { slots: 512, ..PlacementParams::default() };
        let (one, other) = (Placer::new(params), Placer::new(params));
        for members in [3, 4, 4, 2, 0, 5] {
            let placed = one.place(&view(members));
            assert_eq!(*placed, SlotOwners::of_view(&view(members), params));
            assert!(Arc::ptr_eq(&placed, &one.place(&view(members))));
            assert!(!Arc::ptr_eq(&placed, &other.place(&view(members))));
        }
    }
}
