//! Values that the modules above store for each member, so that this module does not depend on them.

use std::any::Any;
use std::sync::{Arc, Mutex};

use crate::error::locked;

/// At most one value of each type: the messages' post, the requests' handlers, the names on offer.
#[derive(Default)]
pub(crate) struct Extensions(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// The member's value of this type, created by `make` if there is none. `make` must not ask for an extension itself.
    pub(crate) fn get_or_make<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut values = locked(&self.0);
        if let Some(known) = values.iter().find_map(|value| Arc::clone(value).downcast().ok()) {
            return known;
        }
        let made = Arc::new(make());
        values.push(Arc::<T>::clone(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value_which_is_made_once() {
        let extensions = Extensions::default();
        let (first, other) = (extensions.get_or_make(|| 1_u32), extensions.get_or_make(|| "text"));
        assert_eq!((*first, *other), (1, "text"));
        assert!(Arc::ptr_eq(&first, &extensions.get_or_make(|| 2_u32)));
    }
}
