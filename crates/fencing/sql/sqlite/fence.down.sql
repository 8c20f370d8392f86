-- Forgets every epoch: whoever still writes under an old one passes until the next acquisition has written.
DROP TABLE IF EXISTS shardwise_fence;
