//! The handlers of one member. They are read for each request, so reading takes no lock and allocates nothing.

use std::collections::BTreeMap;

use arc_swap::ArcSwap;

use super::Addressee;
use super::handlers::Handler;

/// By path, then by addressee.
type ByPath = BTreeMap<String, Vec<(Addressee, Handler)>>;

#[derive(Default)]
pub(super) struct HandlerMap(ArcSwap<ByPath>);

impl HandlerMap {
    pub(super) fn get(&self, to: Addressee, path: &str) -> Option<Handler> {
        let handlers = self.0.load();
        let (_, handler) = handlers.get(path)?.iter().find(|(of, _)| *of == to)?;
        Some(Handler::clone(handler))
    }

    /// Adds a handler or replaces one; false if it would be one more than `most`.
    pub(super) fn insert(&self, to: Addressee, path: &str, handler: &Handler, most: usize) -> bool {
        let mut is_in = false;
        self.0.rcu(|known| {
            let mut handlers = ByPath::clone(known);
            let at_path = handlers.entry(path.to_owned()).or_default();
            match at_path.iter_mut().find(|(of, _)| *of == to) {
                Some((_, replaced)) => replaced.clone_from(handler),
                None => at_path.push((to, Handler::clone(handler))),
            }
            is_in = handlers.values().map(Vec::len).sum::<usize>() <= most;
            if is_in { handlers } else { ByPath::clone(known) }
        });
        is_in
    }

    /// Whom they are for and where they are, sorted.
    pub(super) fn keys(&self) -> Vec<(Addressee, String)> {
        let handlers = self.0.load();
        let keys = handlers.iter().flat_map(|(path, of_path)| of_path.iter().map(|(to, _)| (*to, path.clone())));
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        keys
    }
}
