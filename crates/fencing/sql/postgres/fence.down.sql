-- Forgets every epoch: a writer with an old one passes until the next acquisition has written.
DROP TABLE IF EXISTS shardwise_fence;
