//! Fences: one conditional statement for each database, and helpers.

pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod shared;
pub mod sqlite;
