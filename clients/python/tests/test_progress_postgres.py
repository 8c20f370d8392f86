"""Progress in PostgreSQL. SHARDWISE_POSTGRES is a database without tables."""

import asyncio
import os
import unittest
from typing import Any, Callable

import asyncpg
import psycopg
from psycopg.rows import dict_row

import shardwise_client
from shardwise_client import Fenced, Moved, Position, ShardwiseError, sync
from tests.test_progress import START, owner, saved, tables

DATABASE = os.environ["SHARDWISE_POSTGRES"]


def setUpModule() -> None:
    with psycopg.connect(DATABASE, autocommit=True) as connection:
        connection.execute(tables("postgres").encode())


class OnPostgres(unittest.TestCase):
    def setUp(self) -> None:
        with psycopg.connect(DATABASE, autocommit=True) as connection:
            connection.execute("TRUNCATE shardwise_fence, shardwise_progress")

    def test_the_next_owner_goes_on_and_the_former_one_is_refused(self) -> None:
        with psycopg.connect(DATABASE) as db:
            with db.transaction():
                self.assertEqual(owner().resume(db), START)
            with db.transaction():
                one = owner().save(db, START, "10")
            self.assertEqual(one, saved(1, "10", 5))
            with db.transaction():
                self.assertEqual(owner(epoch=6).resume(db), one)
            calls: tuple[Callable[[], object], ...] = (lambda: owner().resume(db), lambda: owner().save(db, one, "stale"))
            for call in calls:
                with self.assertRaises(Fenced) as refused, db.transaction():
                    call()
                self.assertEqual((refused.exception.resource, refused.exception.epoch, refused.exception.seen), ("slot/17", 5, 6))
            with db.transaction():
                self.assertEqual(owner(resource="slot/300", epoch=7).resume(db), one)
            with self.assertRaises(Fenced) as refused, db.transaction():
                owner(epoch=6).save(db, one, "stale")
            self.assertEqual(refused.exception.seen, 7)

    def test_two_tasks_cannot_overwrite_each_other(self) -> None:
        with psycopg.connect(DATABASE, row_factory=dict_row) as db:
            with db.transaction():
                start = owner().resume(db)
            with db.transaction():
                owner().save(db, start, "a")
            with self.assertRaises(Moved) as refused, db.transaction():
                owner().save(db, start, "z")
            self.assertEqual((refused.exception.number, refused.exception.found), (0, 1))
            with db.transaction():
                self.assertEqual(owner().resume(db), saved(1, "a", 5))

    def test_without_a_transaction_there_is_no_progress(self) -> None:
        with psycopg.connect(DATABASE, autocommit=True) as db:
            for call in (lambda: owner().resume(db), lambda: owner().save(db, START, "1")):
                self.assertRaisesRegex(ShardwiseError, "begin one first", call)
            with db.transaction():
                self.assertEqual(owner().resume(db), START)
            self.assertRaisesRegex(ShardwiseError, "begin one first", lambda: owner().save(db, START, "1"))

    def test_above_read_committed_a_new_epoch_comes_first(self) -> None:
        with psycopg.connect(DATABASE) as db:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with self.assertRaisesRegex(ShardwiseError, "resume in a transaction in READ COMMITTED"), db.transaction():
                owner().resume(db)
            db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            with db.transaction():
                owner().resume(db)
            db.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            with db.transaction():
                owner().save(db, owner().resume(db), "1")

    def test_connections_that_do_not_block(self) -> None:
        progress = shardwise_client.Progress("büro 1", "orders", "name/singleton/leader", 5, "worker-5")
        former = shardwise_client.Progress("büro 1", "orders", "name/singleton/leader", 4, "worker-4")

        async def goes_on(db: Any, start: Position) -> Position:
            async with db.transaction():
                self.assertEqual(await progress.resume(db), start)
                position = await progress.save(db, start, str(start.number + 1))
            with self.assertRaises(Moved):
                async with db.transaction():
                    await progress.save(db, start, "z")
            with self.assertRaises(Fenced):
                async with db.transaction():
                    await former.resume(db)
            with self.assertRaisesRegex(ShardwiseError, "begin one first"):
                await progress.save(db, position, "z")
            return position

        async def both() -> None:
            db = await asyncpg.connect(DATABASE)
            try:
                position = await goes_on(db, START)
            finally:
                await db.close()
            async with await psycopg.AsyncConnection.connect(DATABASE, autocommit=True) as other:
                self.assertEqual(await goes_on(other, position), saved(2, "2", 5))

        asyncio.run(both())

    def test_tasks_that_resume_wait_for_each_other(self) -> None:
        progress = shardwise_client.Progress("büro 1", "orders", "slot/17", 5, "worker-5")

        async def saves(times: int) -> None:
            async with await psycopg.AsyncConnection.connect(DATABASE, autocommit=True) as db:
                for _ in range(times):
                    async with db.transaction():
                        position = await progress.resume(db)
                        await progress.save(db, position, str(int(position.value or 0) + 1))

        async def four() -> None:
            await asyncio.gather(*(saves(10) for _ in range(4)))

        asyncio.run(four())
        with psycopg.connect(DATABASE) as db:
            found = sync.Progress("büro 1", "orders", "slot/17", 5, "worker-5").resume(db)
        self.assertEqual(found, saved(40, "40", 5))
