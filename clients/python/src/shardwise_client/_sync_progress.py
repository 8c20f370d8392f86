"""Progress with connections that block."""

from contextlib import closing
from typing import Any

from ._progress import Position, ProgressSteps, Step, Steps, check_transaction, statements_for, tuple_of
from ._statements import SQLITE


class Progress(ProgressSteps):
    """See `shardwise_client.Progress`, for connections that block: of sqlite3, of psycopg and other drivers of PostgreSQL with `%s`, and Django's."""

    def resume(self, connection: Any) -> Position:
        """The position from which to go on. From the commit on, lower epochs are refused (`Fenced`). It checks the fence first."""
        return _run(connection, self.resuming(statements_for(connection)))

    def save(self, connection: Any, position: Position, to: str) -> Position:
        """Saves the position `to`, and returns it for the next call. See `shardwise_client.Progress.save`."""
        return _run(connection, self.saving(statements_for(connection), position, to))


def _run(connection: Any, steps: Steps) -> Position:
    answer: Any = None
    # Django's connection has that of the driver within it, and takes `%s` for all databases.
    driver, is_django = getattr(connection, "connection", connection), hasattr(connection, "vendor")
    mark = "?" if statements_for(connection) is SQLITE and not is_django else "%s"
    try:
        while True:
            answer = _carried_out(connection, steps.send(answer), mark)
            check_transaction(driver)
    except StopIteration as ended:
        position: Position = ended.value
        return position


def _carried_out(connection: Any, step: Step, mark: str) -> Any:
    with closing(connection.cursor()) as cursor:
        cursor.execute(*step.marked(mark))
        return tuple_of(cursor.fetchone()) if step.reads else cursor.rowcount
