//! Judges workers by what they write down: was a slot ever held twice, and was each write of work that ran on refused?

mod judge;
mod lines;

pub use judge::{Findings, Stay, findings};
pub use lines::{At, Line, StayLog, StayLogReader};
