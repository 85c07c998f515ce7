"""The one door to an engine: ClickHouse as a server, or chDB inside this process with its data in a folder.

Both through clickhouse-connect and with the same SQL. A folder belongs to one process at a time, so it is held only as
long as something is done with it: whoever else wants it waits.
"""

import fcntl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from gyre.errors import GyreError
from gyre.warehouse import rows, tables, views
from schemas.speakers import Stream

LOCK = "gyre.lock"
PATIENCE_SECONDS = 30.0
_ASKING = {"format_csv_null_representation": "", "readonly": 2}


class WarehouseError(GyreError):
    """The warehouse cannot do what was asked; one line."""


class WarehouseAway(WarehouseError):
    """It does not answer, or another process holds its folder: wait."""


class QueryRefused(WarehouseError):
    """The SQL is not what the engine takes: mend it."""


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
        needed = {"clickhouse_connect": "analytics"} | ({} if self._url else {"chdb": "chdb"})
        for package, extra in needed.items():
            if find_spec(package) is None:
                raise WarehouseError(f"warehouse {self.name}: {package} is not installed: pip install 'gyre[{extra}]'")

    @property
    def embedded(self) -> bool:
        """Whether it is a folder, which one process at a time may use."""
        return self._folder is not None

    def position(self, run: str, stream: Stream) -> int:
        """Up to which sequence every message of a stream is here, whole; 0 for none."""
        found = self._rows(tables.position_query(run, stream))
        return tables.position_of([(int(sequence), bool(whole)) for sequence, whole in found])

    def commit_at(self, run: str, stream: Stream, sequence: int) -> str:
        """Id of the commit at a sequence; "" where it is malformed or not here."""
        found = self._rows(
            f"SELECT any(commit) FROM {tables.STORED} "
            f"WHERE run = '{run}' AND stream = '{stream}' AND sequence = {sequence}"
        )
        return str(found[0][0]) if found else ""

    def insert(self, lines: Sequence[bytes]) -> None:
        """Write rows, as `rows.lines` gives them; writing them again changes nothing.

        Each type is written by itself, which is what makes it cheap; a batch may be there in part if it is cut short.
        """
        by_kind: dict[bytes, list[bytes]] = {}
        for line in lines:
            by_kind.setdefault(rows.kind_of(line), []).append(line)
        with self._answered():
            for each in by_kind.values():
                self._opened().raw_insert(tables.STORED, insert_block=b"\n".join(each), fmt="JSONEachRow")

    def query(self, sql: str, parameters: Mapping[str, Any], form: str) -> bytes:
        """Ask, without any right to write; `form` is ClickHouse's name of a format. Raises `QueryRefused`."""
        with self._answered():
            self._opened()
            if self._reader is None:
                self._reader = self._connect(self._database, _ASKING)
            found: bytes = self._reader.raw_query(sql.strip().rstrip(";"), parameters=dict(parameters), fmt=form)
            return found

    def release(self) -> None:
        """Let others have the folder; the next use takes it again. A server's connection stays.

        Where a type has many parts, some are merged first: between short uses nobody else would do it.
        """
        if not self.embedded:
            return
        if self._writer is not None:
            for (partition,) in self._rows(tables.crowded_query(tables.PARTS_MOST)):
                with self._answered():
                    self._opened().command(f"OPTIMIZE TABLE {tables.STORED} PARTITION ID '{partition}'")
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

    def _opened(self) -> Any:
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
        return self._writer

    def _connect(self, database: str | None, settings: Mapping[str, Any]) -> Any:
        """Chdb's settings are of a connection and `readonly` cannot be taken back, so that whoever asks has its own."""
        import clickhouse_connect

        if self._folder is not None:
            path = str(self._folder / "data")
            return clickhouse_connect.get_client(
                interface="chdb", path=path, database=database, settings=dict(settings)
            )
        assert self._url is not None
        return clickhouse_connect.get_client(
            interface=self._url.scheme,
            host=self._url.hostname,
            port=self._url.port or 8123,
            username=unquote(self._url.username or "default"),
            password=unquote(self._url.password or ""),
            database=database,
            settings=dict(settings),
            autogenerate_session_id=False,
            connect_timeout=10,
            send_receive_timeout=60,
        )

    def _prepare(self, client: Any) -> None:
        client.command(f"CREATE DATABASE IF NOT EXISTS `{self._database}`")
        client.database = self._database
        if int(client.command(views.HAS_LAYOUT)) == 0:
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
        """Errors of the driver as ours: the engine's refusal, or no engine."""
        from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, OperationalError

        try:
            yield
        except OperationalError as error:
            self.close()
            raise WarehouseAway(f"warehouse {self.name}: {_line(error)}") from error
        except DatabaseError as error:
            raise QueryRefused(f"warehouse {self.name}: {_line(error)}") from error
        except ClickHouseError as error:
            raise WarehouseError(f"warehouse {self.name}: {_line(error)}") from error


def _line(error: Exception) -> str:
    """What an engine says, in one line without its stack and version."""
    text = " ".join(str(error).split())
    return text.partition(" (version ")[0].partition(" In scope ")[0].rstrip(":.")[:500]
