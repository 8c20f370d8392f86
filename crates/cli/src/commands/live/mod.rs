//! Commands on the live group that do not join it.

mod ask;
mod confirm;
mod daemons;
mod drain;
mod held;
mod holders;
mod members;
mod owner;
mod rebalances;
mod route;

pub(crate) use ask::AskArgs;
pub(crate) use confirm::{ConfirmLoss, EndAbsence};
pub(crate) use daemons::DaemonsArgs;
pub(crate) use drain::{Drain, Undrain};
pub(crate) use holders::HoldersArgs;
pub(crate) use members::Members;
pub(crate) use owner::{Explain, Owner};
pub(crate) use rebalances::RebalancesArgs;
pub(crate) use route::{RouteArgs, RoutesCommand};
