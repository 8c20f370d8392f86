//! Sessions: state that lives in one member's process, such as a transaction or a lock, and the requests that reach it. The id names the
//! member that opened the session, so nothing is stored elsewhere.
//!
//! - `session`: the handle of one session. `open`: opening one.
//! - `registry`: the sessions of a member. `timer`: the task that ends them in time.
//! - `handler`: handlers of requests to sessions.

mod handler;
mod open;
mod registry;
mod session;
mod timer;

pub use handler::SessionRequest;
pub use open::SessionError;
pub(super) use registry::Sessions;
pub use session::Session;
