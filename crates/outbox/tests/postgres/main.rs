//! The PostgreSQL store on real servers: the newest version and the oldest.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![expect(clippy::print_stdout, reason = "what is tried again is printed")]

mod adoption;
mod backlog;
mod bad_input;
mod common;
mod copies;
mod costs;
mod crossings;
mod encoding;
mod forgotten;
mod lost_commits;
mod migrations;
mod new_first;
mod numbers;
mod publishing;
mod refusals;
mod retention;
mod search_paths;
mod serializable;
#[path = "../common/mod.rs"]
mod shared;
mod strikes;
mod suite;
mod trigger;
mod upgrade;
mod upgrade_list;
mod upgrade_prepared;
mod version_4;
mod waking;
mod writers;
mod writers_list;
