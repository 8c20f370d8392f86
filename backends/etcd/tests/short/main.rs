//! Claims and notes changed by hand, and the suite of notes: these tests take seconds and need no process of their own, so they are one
//! binary.

mod claims_by_hand;
#[path = "../common/mod.rs"]
mod common;
mod notes;
