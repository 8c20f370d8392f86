-- Takes all journals away, with every event and snapshot.
DROP TABLE IF EXISTS shardwise_journal_snapshot;
DROP TABLE IF EXISTS shardwise_journal_event;
DROP TABLE IF EXISTS shardwise_journal;
