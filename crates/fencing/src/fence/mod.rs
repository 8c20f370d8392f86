//! Fences: one conditional statement for each database, and helpers.

pub mod postgres;
pub mod sqlite;
