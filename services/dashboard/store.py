"""The dashboard's tables of one run: small rows in a file of its own, which goes when it is closed.

What a question costs in memory does not depend on how long the log is. One writes, in the event loop; questions go
through a connection of their own, one at a time, from any thread, and see what was kept last.
"""

import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from services.dashboard.rows import TABLES, Change

Ask = Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]
"""SQL and its parameters to rows."""
_SETTINGS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE;"
_INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'executions' AND sql IS NOT NULL"


class Store:
    """Tables of `rows.TABLES`."""

    def __init__(self, kept: Path | None = None) -> None:
        """Empty; or a file that `copy` made, which stays as it is."""
        self._folder = tempfile.TemporaryDirectory(prefix="gyre-dashboard-")
        path = Path(self._folder.name) / "rows.db"
        self._writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._writer.executescript(_SETTINGS + TABLES)
        self._writer.execute("BEGIN")
        self._reader = _kept(kept) if kept else sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._turn = threading.Lock()

    @staticmethod
    def note_of(kept: Path) -> str:
        """What `copy` was given beside the rows. Raises OSError, sqlite3.Error."""
        with kept.open("rb"), contextlib.closing(_kept(kept)) as opened:
            return str(opened.execute("SELECT said FROM note").fetchone()[0])

    def apply(self, changes: Iterable[Change]) -> None:
        """Make changes; questions see them after `keep`."""
        for statement, alike in groupby(changes, itemgetter(0)):
            self._writer.executemany(statement, map(itemgetter(1), alike))

    def fill(self, changes: Iterable[Change]) -> None:
        """Make very many changes to empty tables: the indexes of the longest one are made afterwards."""
        indexes = self._writer.execute(_INDEXES).fetchall()
        for name, _ in indexes:
            self._writer.execute(f"DROP INDEX {name}")
        self.apply(changes)
        for _, statement in indexes:
            self._writer.execute(statement)

    def copy(self, file: Path, note: str) -> None:
        """Write all rows, and a note, into a file that is not there yet. Raises OSError, sqlite3.Error."""
        self._writer.execute("CREATE TABLE note (said TEXT)")
        self._writer.execute("INSERT INTO note VALUES (?)", (note,))
        self.keep()
        self._writer.execute("COMMIT")
        try:
            self._writer.execute("VACUUM INTO ?", (str(file),))
        finally:
            self._writer.execute("BEGIN")

    def keep(self) -> None:
        """Let questions see all changes so far."""
        self._writer.execute("COMMIT")
        self._writer.execute("BEGIN")

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a SELECT."""
        with self._turn:
            return self._reader.execute(sql, dict(parameters)).fetchall()

    def take_over(self, other: "Store") -> None:
        """Hold another's rows instead of one's own, also for who asks now; the other is not to be used any more."""
        with self._turn:
            self._reader.close()
            self._writer.close()
            self._folder.cleanup()
            self._folder, self._writer, self._reader = other._folder, other._writer, other._reader  # noqa: SLF001

    def close(self) -> None:
        """Let go of the file."""
        with self._turn:
            self._reader.close()
        self._writer.close()
        self._folder.cleanup()


def _kept(file: Path) -> sqlite3.Connection:
    """Of an archive that may come from anyone: nothing in its file can make this program do more than read it."""
    opened = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
    )
    opened.executescript("PRAGMA trusted_schema = OFF; PRAGMA query_only = ON; PRAGMA cell_size_check = ON;")
    return opened
