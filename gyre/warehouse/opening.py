"""Where SQL is asked: a warehouse by folder, whoever holds it; a server by URL; an archive's columns.

Whatever is opened answers the same SQL over the same views (docs/analytics.md lists them with their columns):

    runs executions calls trees assessments groups evaluations roles micro_steps trained steps    typed views
    events     every event: its envelope, `time`, and `body` (JSON, asked for as `body.cell::UInt32`)
    facts      every event: its envelope, and the fields of `fields.FIELDS` as plain columns: fast

Every view has the column `run`; `{run:String}` in SQL is filled from `parameters`. Times are seconds since the run's
first event. Answers are bytes in the format asked for: "JSONEachRow" is one JSON object a line.

    with opening.opened("runs/demo/warehouse") as warehouse:
        answer = warehouse.query("SELECT step, score FROM steps WHERE run = {run:String}", {"run": "demo"})
        steps = [json.loads(line) for line in answer.splitlines()]

Services open by run or archive name, brought up to date first: `services.asking`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from gyre.warehouse import columns, live
from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.engine import WarehouseAway


class Answering(Protocol):
    """What answers SQL and cannot be written through."""

    name: str

    def query(self, sql: str, parameters: Mapping[str, Any], form: str = "JSONEachRow") -> bytes:
        """Ask; `form` is ClickHouse's name of a format. Raises `QueryRefused`, `WarehouseAway`."""

    def close(self) -> None:
        """Let go of it."""


def open_warehouse(target: str) -> Answering:
    """Open a URL (http, https), the folder of a warehouse, or the folder of an archive's columns.

    Raises:
        WarehouseError: it cannot be opened; one line.
    """
    if target.startswith(("http://", "https://")):
        return Warehouse(target)
    folder = Path(target)
    if (folder / columns.MANIFEST).is_file():
        return columns.Columns(folder)
    if (folder / live.DESK).is_file():
        try:
            return live.Live(folder)
        except WarehouseAway:  # it was left behind by a sink that was killed
            return Warehouse(target)
    return Warehouse(target)


@contextmanager
def opened(target: str) -> Iterator[Answering]:
    """See `open_warehouse`; closed in the end."""
    found = open_warehouse(target)
    try:
        yield found
    finally:
        found.close()
