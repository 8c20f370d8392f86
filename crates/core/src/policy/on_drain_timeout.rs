//! What happens to work that outlasts its time.

/// Rule for a resource whose work does not end within the drain timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnDrainTimeout {
    /// Keep the claim until the work or the lease ends: no work runs twice.
    #[default]
    Hold,
    /// Hand the resource to the next member although work may still run here; counted as an overlap.
    Release,
}
