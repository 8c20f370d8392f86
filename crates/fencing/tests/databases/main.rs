//! Fences, progress and journals in real databases: SQLite, and the newest and the oldest PostgreSQL.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;
mod documentation;
mod fences_postgres;
mod fences_sqlite;
mod full_disk;
mod journals;
mod journals_race;
mod oldest;
mod progress;
mod progress_postgres;
mod progress_store;
mod progress_torture;
mod races;
