-- Takes schema 1 away with every event in it.
DROP TABLE IF EXISTS outbox;
DROP TABLE IF EXISTS outbox_head;
DROP TABLE IF EXISTS outbox_aggregate;
DROP TABLE IF EXISTS outbox_slot;
DROP TABLE IF EXISTS outbox_publisher;
DROP TABLE IF EXISTS outbox_meta;
DROP FUNCTION IF EXISTS outbox_sequence();
DROP FUNCTION IF EXISTS outbox_fixed();
DROP FUNCTION IF EXISTS outbox_now();
