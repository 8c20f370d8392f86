"""Progress in SQLite, by connections that block and by those that do not, and the page's example."""

import asyncio
import re
import sqlite3
import tempfile
import textwrap
import unittest
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite

import shardwise_client
from shardwise_client import Fenced, Moved, Position, ShardwiseError, sync

ROOT = Path(__file__).resolve().parents[3]
START = Position(0, None, None, None)


def tables(database: str) -> str:
    """The tables of fences and of progress."""
    folder = ROOT / "crates/fencing/sql" / database
    return "".join((folder / f"{table}.up.sql").read_text(encoding="utf-8") for table in ("fence", "progress"))


def owner(key: str = "customers", resource: str = "slot/17", epoch: int = 5) -> sync.Progress:
    return sync.Progress("büro 1", key, resource, epoch, f"worker-{epoch}")


def saved(number: int, value: str, epoch: int) -> Position:
    return Position(number, value, f"worker-{epoch}", epoch)


class OnSqlite(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="shardwise-progress-")
        self.addCleanup(folder.cleanup)
        self.path = str(Path(folder.name) / "app.db")
        self.db = self.connected()
        self.db.executescript(tables("sqlite"))

    def connected(self, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(self.path, **options)
        self.addCleanup(connection.close)
        return connection

    def resume(self, progress: sync.Progress) -> Position:
        with self.db:
            return progress.resume(self.db)

    def save(self, progress: sync.Progress, position: Position, to: str) -> Position:
        with self.db:
            return progress.save(self.db, position, to)

    def test_the_next_owner_goes_on(self) -> None:
        self.assertEqual(self.resume(owner()), START)
        one = self.save(owner(), START, "10")
        self.assertEqual(one, saved(1, "10", 5))
        with self.db:
            found = owner().resume(self.db)
            self.assertEqual(owner().save(self.db, found, "20"), saved(2, "20", 5))
        self.assertEqual(self.resume(owner(epoch=6)), saved(2, "20", 5))

    def test_two_tasks_cannot_overwrite_each_other(self) -> None:
        start = self.resume(owner())
        one = self.save(owner(), start, "a")
        with self.assertRaisesRegex(Moved, "goes on from position number 0, but the database has number 1; roll back, and resume"):
            self.save(owner(), start, "z")
        # The same text as before is another position.
        self.save(owner(), self.save(owner(), one, "b"), "a")
        with self.assertRaises(Moved) as refused:
            self.save(owner(), one, "z")
        self.assertEqual((refused.exception.number, refused.exception.found, refused.exception.passes), (1, 3, False))
        self.assertEqual(self.resume(owner()), saved(3, "a", 5))

    def test_a_lower_epoch_is_refused(self) -> None:
        start = self.resume(owner())
        self.resume(owner(epoch=6))
        for call in (lambda: self.resume(owner()), lambda: self.save(owner(), start, "stale"), lambda: self.resume(owner("another"))):
            self.assertRaisesRegex(Fenced, "slot/17 of group 'büro 1' is held under a higher epoch than 5", call)
        # The number of slots was changed: only the row of the key has seen the owner's epoch.
        self.resume(owner(resource="slot/300", epoch=7))
        for call in (lambda: self.resume(owner(epoch=6)), lambda: self.save(owner(epoch=6), start, "stale")):
            with self.assertRaises(Fenced) as refused:
                call()
            self.assertEqual((refused.exception.resource, refused.exception.epoch, refused.exception.seen), ("slot/17", 6, 7))

    def test_what_is_rolled_back_was_not_saved(self) -> None:
        with self.assertRaises(ZeroDivisionError), self.db:
            owner().resume(self.db)
            1 / 0
        with self.assertRaisesRegex(Moved, "the transaction of `resume` was not committed"):
            self.save(owner(), START, "1")
        start = self.resume(owner())
        with self.assertRaises(ZeroDivisionError), self.db:
            owner().save(self.db, start, "1")
            1 / 0
        self.assertEqual(self.resume(owner()), START)

    def test_without_a_transaction_there_is_no_progress(self) -> None:
        alone = self.connected(isolation_level=None)
        for call in (lambda: owner().resume(alone), lambda: owner().save(alone, START, "1")):
            self.assertRaisesRegex(ShardwiseError, "begin one first", call)
        alone.execute("BEGIN")
        self.assertEqual(owner().resume(alone), START)
        alone.execute("COMMIT")

    def test_rows_may_be_of_any_kind(self) -> None:
        self.db.row_factory = sqlite3.Row
        self.assertEqual(self.resume(owner()), START)
        self.db.row_factory = lambda cursor, row: {column[0]: value for column, value in zip(cursor.description, row)}
        self.assertEqual(self.save(owner(), START, "1"), saved(1, "1", 5))
        self.assertEqual(self.resume(owner()), saved(1, "1", 5))

    def test_positions_are_texts_of_some_size(self) -> None:
        self.resume(owner())
        number: Any = 7
        self.assertRaisesRegex(TypeError, "a position is a text, not int: 7", lambda: self.save(owner(), START, number))
        self.assertRaisesRegex(sqlite3.IntegrityError, "position_within_4096_bytes", lambda: self.save(owner(), START, "x" * 4097))
        self.assertEqual(self.save(owner(), START, "é" * 2048).number, 1)

    def test_a_connection_that_does_not_block(self) -> None:
        async def goes_on() -> None:
            progress = shardwise_client.Progress("büro 1", "orders", "name/singleton/leader", 5, "worker-5")
            async with aiosqlite.connect(self.path) as db:
                self.assertEqual(await progress.resume(db), START)
                await db.commit()
                self.assertEqual(await progress.save(db, START, "10"), saved(1, "10", 5))
                await db.commit()
                with self.assertRaises(Moved):
                    await progress.save(db, START, "10")
                await db.rollback()
            async with aiosqlite.connect(self.path, isolation_level=None) as alone:
                with self.assertRaisesRegex(ShardwiseError, "begin one first"):
                    await progress.resume(alone)

        asyncio.run(goes_on())

    def test_the_example_of_the_page(self) -> None:
        page = (ROOT / "clients/python/README.md").read_text(encoding="utf-8")
        found = re.search(r"```python\n(.*?)```", page[page.index("\n## Progress\n") :], re.DOTALL)
        assert found is not None

        class Held:
            key, resource, epoch = "file-1", "slot/17", 5

        rows = list(range(2_500))
        space: dict[str, Any] = {"group": "importers", "instance": "worker-5", "rows": rows}
        exec("async def example(db, key, entered):\n" + textwrap.indent(found[1], "    "), space)

        async def imports() -> None:
            async with aiosqlite.connect(self.path) as db:
                await db.execute("CREATE TABLE imported (row)")
                await db.commit()
                example: Coroutine[Any, Any, None] = space["example"](db, Held.key, Held)
                await example
                # What is at its end has nothing left to do.
                await space["example"](db, Held.key, Held)

        asyncio.run(imports())
        with closing(self.db.execute("SELECT row FROM imported ORDER BY row")) as imported:
            self.assertEqual([row[0] for row in imported], rows)
