//! shardwise.
fn main() {}
