"""Where the owner of a key goes on: the position that was saved last, in the same transaction as the work up to it.

What a call does is a generator of statements, which does no I/O; `Progress` here and in `shardwise_client.sync` carry them out.
"""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from ._errors import Fenced, Moved, ShardwiseError
from ._statements import POSTGRES, SQLITE, SQLITE_POSITION, Statements

_PARAMETER = re.compile(r"[$?](\d+)")
_SQLITE_MODULES = ("sqlite3", "pysqlite3", "aiosqlite")


class Position(NamedTuple):
    """A position as the database has it. `number`: how many times one was saved; 0 before the first time, when `value` is `None` and the work begins
    at its start. `saved_by` and `saved_epoch`: the instance that saved it, and under which epoch."""

    number: int
    value: Optional[str]
    saved_by: Optional[str]
    saved_epoch: Optional[int]


class Step(NamedTuple):
    """A statement. It is answered with its first row as a tuple, or `None`, if it reads, and else with how many rows it has changed."""

    sql: str
    values: tuple[object, ...]
    reads: bool

    def marked(self, mark: str) -> tuple[str, list[object]]:
        """The statement with this mark for each parameter, and the values in the order of the marks."""
        values: list[object] = []

        def put(found: "re.Match[str]") -> str:
            values.append(self.values[int(found[1]) - 1])
            return mark

        return _PARAMETER.sub(put, self.sql), values


Steps = Generator[Step, Any, Position]


def statements_for(connection: object) -> Statements:
    """Those of the connection's database: SQLite's for the module `sqlite3` and what is built on it, else PostgreSQL's."""
    modules = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    is_sqlite = getattr(connection, "vendor", "") == "sqlite" or not modules.isdisjoint(_SQLITE_MODULES)
    return SQLITE if is_sqlite else POSTGRES


def check_transaction(connection: Any) -> None:
    """Raises an error if this connection of SQLite has no transaction. PostgreSQL's statements find that out by themselves."""
    if getattr(connection, "in_transaction", True) is False:
        raise _no_transaction()


def tuple_of(row: Any) -> Optional[tuple[Any, ...]]:
    """A row of any kind as a tuple."""
    return None if row is None else tuple(row.values() if isinstance(row, Mapping) else row)


@dataclass(frozen=True)
class ProgressSteps:
    """The progress of one key, for its present owner. `resource` and `epoch` are those of the work that was entered (`entered.resource`,
    `entered.epoch`), `group` and `instance` those of the sidecar (`group` and `instance_id` of `ownership()`)."""

    group: str
    key: str
    resource: str
    epoch: int
    instance: str

    def resuming(self, sql: Statements) -> Steps:
        yield from self._checking(sql)
        of_key = (self.group, self.key)
        row: Optional[tuple[Any, ...]] = None
        if sql is POSTGRES:
            row = yield Step(sql.resume, (*of_key, self.epoch), reads=True)
        elif (yield Step(sql.resume, (*of_key, self.epoch), reads=False)) == 1:
            row = yield Step(SQLITE_POSITION, of_key, reads=True)
        if row is None:
            inside, seen, _ = yield Step(sql.found, of_key, reads=True)
            raise Fenced(self.group, self.resource, self.epoch, seen) if inside else _no_transaction()
        return Position(*row)

    def saving(self, sql: Statements, position: Position, to: str) -> Steps:
        if not isinstance(to, str):
            raise TypeError(f"a position is a text, not {type(to).__name__}: {to!r:.80}")
        yield from self._checking(sql)
        values = (self.group, self.key, self.epoch, self.instance, position.number, to)
        if (yield Step(sql.save, values, reads=False)) == 1:
            return Position(position.number + 1, to, self.instance, self.epoch)
        inside, seen, number = yield Step(sql.found, (self.group, self.key), reads=True)
        if not inside:
            raise _no_transaction()
        if seen is not None and seen > self.epoch:
            raise Fenced(self.group, self.resource, self.epoch, seen)
        raise Moved(self.key, position.number, number)

    def _checking(self, sql: Statements) -> Generator[Step, Any, None]:
        """The fence."""
        values = (self.group, self.resource, self.epoch)
        if sql is SQLITE:
            if (yield Step(sql.check, values, reads=False)) != 1:
                raise Fenced(self.group, self.resource, self.epoch)
            return
        seen, raised, fixed = yield Step(sql.check, values, reads=True)
        if raised and fixed:
            raise ShardwiseError(
                f"epoch {self.epoch} of {self.resource} is new, and a transaction above READ COMMITTED does not see the last writes of its former "
                "owner: resume in a transaction in READ COMMITTED, commit it, and begin again")  # fmt: skip
        if not raised and seen != self.epoch:
            raise Fenced(self.group, self.resource, self.epoch, seen)


def _no_transaction() -> ShardwiseError:
    return ShardwiseError("progress is saved in the transaction that does the work, and there is none: begin one first")


class Progress(ProgressSteps):
    """See `ProgressSteps`. For connections of asyncpg, of psycopg (`AsyncConnection`) and of aiosqlite; those that block are for
    `shardwise_client.sync.Progress`. All calls belong into a transaction of yours; after an error, roll it back."""

    async def resume(self, connection: Any) -> Position:
        """The position from which to go on. From the commit on, lower epochs are refused (`Fenced`). It checks the fence first."""
        return await _run(connection, self.resuming(statements_for(connection)))

    async def save(self, connection: Any, position: Position, to: str) -> Position:
        """Saves the position `to`, at most 4,096 bytes, and returns it for the next call. `position` is the one from which the work went on: the
        answer of `resume`, whose transaction was committed or is this one, or of the `save` before. If another task has saved one since, this is
        `Moved`. It checks the fence first."""
        return await _run(connection, self.saving(statements_for(connection), position, to))


async def _run(connection: Any, steps: Steps) -> Position:
    answer: Any = None
    try:
        while True:
            answer = await _carried_out(connection, steps.send(answer))
            check_transaction(connection)
    except StopIteration as ended:
        position: Position = ended.value
        return position


async def _carried_out(connection: Any, step: Step) -> Any:
    # asyncpg.
    if hasattr(connection, "fetchrow"):
        if step.reads:
            return tuple_of(await connection.fetchrow(step.sql, *step.values))
        status: str = await connection.execute(step.sql, *step.values)
        return int(status.rpartition(" ")[2])
    cursor = await connection.execute(*step.marked("?" if statements_for(connection) is SQLITE else "%s"))
    try:
        return tuple_of(await cursor.fetchone()) if step.reads else cursor.rowcount
    finally:
        await cursor.close()
