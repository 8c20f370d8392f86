//! What the benchmarks `outbox` and `writers` share. Each of them uses all of it.

pub(crate) mod figures;
pub(crate) mod peers;
pub(crate) mod share;
pub(crate) mod stage;
