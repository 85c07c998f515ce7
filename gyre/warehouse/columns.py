"""An archive's columnar part: a folder with each view of a warehouse as a Parquet file, read in place.

    NAME.jsonl.zst.columns/
        manifest.json      of which archive (digest), by which layout, and each file's rows, size and digest
        stored.parquet     every event, sorted by type: what `events` and `facts` are views of
        executions.parquet, steps.parquet, ...    the typed views, worked out once

It is a cache, made from the archive by the same rows and views as a run's warehouse. One that is of another archive, of
another layout or damaged does not fit, and is made anew.
"""

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.warehouse import engine, fields, question, tables, views
from gyre.warehouse.engine import WarehouseError

MANIFEST = "manifest.json"
_ALL = ", ".join(f"`{name}`" for name in (*tables.COLUMNS, *fields.FIELDS))
_SETTINGS = "output_format_parquet_compression_method = 'zstd', output_format_parquet_row_group_size = 100000"
_PARTS = (tables.STORED, *views.VIEWS)


def write(client: Any, run: str, folder: Path) -> None:
    """Write each table of a run as Parquet, through a client of an embedded engine that holds all of it."""
    for name in _PARTS:
        select = f"SELECT * FROM {name} WHERE run = '{run}'"
        if name == tables.STORED:
            select = (
                f"SELECT {_ALL} FROM {name} FINAL WHERE run = '{run}' ORDER BY run, type, stream, sequence, `index`"
            )
        path = str(folder / f"{name}.parquet").replace("\\", "\\\\").replace("'", "\\'")
        client.command(f"INSERT INTO FUNCTION file('{path}', 'Parquet') {select} SETTINGS {_SETTINGS}")


def seal(folder: Path, archive: str, run: str) -> None:
    """Say in the folder what its files are, and of which archive (the digest in its footer)."""
    files = {path.name: _look(path) for path in sorted(folder.glob("*.parquet"))}
    manifest = {"v": 1, "archive": archive, "run": run, "layout": views.LAYOUT, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def fits(folder: Path, archive: str) -> bool:
    """Whether a folder holds an archive's columns in this program's layout, every file as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if (manifest["archive"], manifest["layout"]) != (archive, views.LAYOUT):
            return False
        return all(_look(folder / f"{name}.parquet") == manifest["files"][f"{name}.parquet"] for name in _PARTS)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def replace(folder: Path, made: Path) -> None:
    """Put a folder that is sealed in the place of what was there."""
    if folder.exists():
        former = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        os.replace(folder, former)
        shutil.rmtree(former, ignore_errors=True)
    os.replace(made, folder)


def _look(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "digest": hashlib.file_digest(file, "sha256").hexdigest()}


class Columns:
    """The columns of an archive, asked as a warehouse is; see `opening.Answering`.

    The engine keeps nothing but their names: a process may have several open, but no warehouse in a folder beside them.
    """

    def __init__(self, folder: Path) -> None:
        """Open a folder that fits (`fits`). Raises `WarehouseError`."""
        self.name = str(folder)
        engine.check(self.name, embedded=True)
        self._folder = folder.absolute()
        self._database = "c" + hashlib.sha256(str(self._folder).encode()).hexdigest()[:16]
        self._turn = threading.Lock()
        with engine.answered(self.name):
            self._keeper = engine.embedded(None, None, {})
            try:
                self._prepare(self._keeper)
                self._reader = engine.embedded(None, self._database, engine.ASKING)
            except BaseException:
                self._keeper.close()
                raise

    def query(self, sql: str, parameters: Mapping[str, Any], form: str = "JSONEachRow") -> bytes:
        """See `Answering`."""
        with self._turn, engine.answered(self.name):
            return question.answer(self._reader, sql, parameters, form)

    def close(self) -> None:
        """See `Answering`."""
        self._reader.close()
        self._keeper.close()

    def _prepare(self, client: Any) -> None:
        client.command(f"CREATE DATABASE IF NOT EXISTS {self._database}")
        client.database = self._database
        kinds = {**tables.COLUMNS, **{name: kind for name, (_, kind) in fields.FIELDS.items()}}
        self._table(client, tables.STORED, ", ".join(f"`{name}` {kind}" for name, kind in kinds.items()))
        for statement in tables.create_views(final=""):
            client.command(statement)
        for name in views.VIEWS:
            client.command(views.create_view(name))
        shapes = {name: self._shape(client, name) for name in views.VIEWS}
        for name, shape in shapes.items():
            client.command(f"DROP VIEW {name}")
            self._table(client, name, shape)

    def _shape(self, client: Any, name: str) -> str:
        described = client.query(f"DESCRIBE TABLE {name}").result_rows
        return ", ".join(f"`{column}` {kind}" for column, kind, *_ in described)

    def _table(self, client: Any, name: str, shape: str) -> None:
        path = self._folder / f"{name}.parquet"
        if not path.is_file():
            raise WarehouseError(f"columns {self.name}: {path.name} is missing; remove the folder, and it is made anew")
        quoted = str(path).replace("\\", "\\\\").replace("'", "\\'")
        client.command(f"CREATE TABLE IF NOT EXISTS {name} ({shape}) ENGINE = File('Parquet', '{quoted}')")
