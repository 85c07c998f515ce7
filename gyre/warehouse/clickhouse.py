"""The one door to an engine: ClickHouse as a server, or chDB inside this process with its data in a folder.

Both through clickhouse-connect and with the same SQL. A folder belongs to one process at a time, so it is held only as
long as something is done with it: whoever else wants it waits.
"""

import fcntl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from gyre.warehouse import columns, engine, question, tables, views
from gyre.warehouse.engine import QueryRefused, WarehouseAway, WarehouseError
from schemas.speakers import Stream

__all__ = ["PATIENCE_SECONDS", "QueryRefused", "Warehouse", "WarehouseAway", "WarehouseError"]
LOCK = "gyre.lock"
PATIENCE_SECONDS = 30.0


class Warehouse:
    """A database of rows; opened when first used."""

    def __init__(self, target: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """A folder, or `http://user:password@host:8123/database`. Raises `WarehouseError`: a package is missing."""
        self._url = urlsplit(target) if target.startswith(("http://", "https://")) else None
        self.name = f"{self._url.hostname}:{self._url.port or 8123}" if self._url else target
        self._folder = None if self._url else Path(target).absolute()
        self._database = (unquote(self._url.path.strip("/")) if self._url else "") or tables.DATABASE
        self._patience = patience_seconds
        self._writer: Any = None
        self._reader: Any = None
        self._lock: IO[bytes] | None = None
        self._opening = threading.RLock()
        engine.check(self.name, embedded=self._folder is not None)

    @property
    def folder(self) -> Path | None:
        """Its folder, which one process at a time may use; None for a server."""
        return self._folder

    def position(self, run: str, stream: Stream) -> int:
        """Up to which sequence every message of a stream is here, whole; 0 for none."""
        found = self._rows(tables.position_query(run, stream))
        return tables.position_of([(int(sequence), bool(whole)) for sequence, whole in found])

    def write_columns(self, run: str, folder: Path) -> None:
        """Write what is here of a run as Parquet files into a folder: see `columns`. Of an embedded engine."""
        with self._answered():
            columns.write(self._opened(), run, folder)

    def commit_at(self, run: str, stream: Stream, sequence: int) -> str:
        """Id of the commit at a sequence; "" where nobody can read it or it is not here."""
        found = self._rows(
            f"SELECT any(commit) FROM {tables.STORED} "
            f"WHERE run = '{run}' AND stream = '{stream}' AND sequence = {sequence}"
        )
        return str(found[0][0]) if found else ""

    def insert(self, lines: Sequence[bytes]) -> None:
        """Write rows, as `rows.lines` gives them; writing them again changes nothing."""
        with self._answered():
            self._opened().raw_insert(
                tables.STORED, list(tables.COLUMNS), insert_block=b"\n".join(lines) + b"\n", fmt="TabSeparated"
            )

    def query(self, sql: str, parameters: Mapping[str, Any], form: str = "JSONEachRow") -> bytes:
        """Ask what is here and nothing more (see `question`), from any thread; `form` is ClickHouse's name of a format.

        Raises:
            QueryRefused: the SQL does more than read what is here, or the engine does not take it.
            WarehouseAway: it does not answer.
        """
        with self._answered():
            return question.answer(self._asking(), sql, parameters, form)

    def release(self) -> None:
        """Let others have the folder; the next use takes it again. A server's connection stays.

        Where there are many parts, some are merged first: between short uses nobody else would do it.
        """
        if self._folder is None:
            return
        if self._writer is not None and int(self._rows(tables.PARTS)[0][0]) > tables.PARTS_MOST:
            with self._answered():
                self._opened().command(f"OPTIMIZE TABLE {tables.STORED}")
        self.close()

    def close(self) -> None:
        """Let go of the engine."""
        clients = self._reader, self._writer
        self._reader = self._writer = None
        for client in clients:
            if client is not None:
                client.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _rows(self, sql: str) -> Sequence[Sequence[Any]]:
        with self._answered():
            found: Sequence[Sequence[Any]] = self._opened().query(sql).result_rows
            return found

    def _asking(self) -> Any:
        with self._opening:
            self._opened()
            if self._reader is None:
                self._reader = self._connect(self._database, engine.ASKING)
            return self._reader

    def _opened(self) -> Any:
        with self._opening:
            self._open()
            return self._writer

    def _open(self) -> None:
        if self._writer is None:
            try:
                if self._folder is not None:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    self._lock = self._taken(self._folder / LOCK)
                self._writer = self._connect(None, {})
                self._prepare(self._writer)
            except BaseException:
                self.close()
                raise

    def _connect(self, database: str | None, settings: Mapping[str, Any]) -> Any:
        if self._folder is not None:
            return engine.embedded(self._folder / "data", database, settings)
        assert self._url is not None
        return engine.server(self._url, database, settings)

    def _prepare(self, client: Any) -> None:
        client.command(f"CREATE DATABASE IF NOT EXISTS `{self._database}`")
        client.database = self._database
        if int(client.command(views.HAS_LAYOUT)) == 0:
            for old, new in tables.renames(dict(client.query(tables.KEPT).result_rows)):
                client.command(f"RENAME TABLE `{old}` TO `{new}`")
            for statement in views.CREATE:
                client.command(statement)

    def _taken(self, path: Path) -> IO[bytes]:
        deadline = time.monotonic() + self._patience
        lock = path.open("ab")
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    lock.close()
                    raise WarehouseAway(
                        f"warehouse {self.name}: another process has used it for {self._patience:g} s; wait, or end it"
                    ) from None
                time.sleep(0.05)
            else:
                return lock

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            with engine.answered(self.name):
                yield
        except WarehouseAway:
            self.close()
            raise
