-- Removes everything of schema 1. Run it in one transaction, with a search_path that leads to the tables, while no worker runs.
DROP TABLE observer, note, claim, departure, member, member_group, store;
