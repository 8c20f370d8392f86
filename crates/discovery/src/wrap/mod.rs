//! Wrappers: any backend in, the same contract out.

mod retry;
mod timeout;
mod traced;

pub use retry::Retry;
pub use timeout::Timeout;
pub use traced::Traced;
