//! The requests of the local worker about its lease, its grants and what it offers.

pub(crate) mod enter;
pub(crate) mod follow;
pub(crate) mod lease;
pub(crate) mod names;
