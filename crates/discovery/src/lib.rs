//! shardwise.
