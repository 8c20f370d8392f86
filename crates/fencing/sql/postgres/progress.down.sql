-- Forgets every position: all work begins again from the start.
DROP TABLE IF EXISTS shardwise_progress;
