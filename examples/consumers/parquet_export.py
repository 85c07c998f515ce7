"""Write every event as a row into Parquet files, each event exactly once.

    pip install pyarrow
    gyre attach examples/consumers/parquet_export.py:ParquetExport demo --durable parquet --option folder=events

A file holds what came between two saves of the position and is named by its first sequence. A crash between the file
and the position has the same events read again, from the same sequence: they replace that file. So
`pyarrow.dataset.dataset("events")` has each event once, and ends where the position does.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from services.consumer import At

SCHEMA = pa.schema(
    {
        "run": pa.string(),
        "sequence": pa.int64(),
        "index": pa.int32(),
        "time_ns": pa.int64(),
        "service": pa.string(),
        "type": pa.string(),
        "event": pa.string(),
    }
)


class ParquetExport:
    """Collects rows until the position is about to be saved."""

    def __init__(self, folder: str = "events") -> None:
        """`folder`: where the files go."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rows: list[dict[str, Any]] = []

    def handle(self, event: Any, at: At) -> None:
        """One row more."""
        self._rows.append(
            {
                "run": at.run,
                "sequence": at.sequence,
                "index": at.index,
                "time_ns": at.commit.time,
                "service": at.commit.producer.service,
                "type": event.type,
                "event": event.model_dump_json(),
            }
        )

    def save(self) -> None:
        """Called just before the position is: what it counts as read is on disk then."""
        if not self._rows:
            return
        name = f"{self._rows[0]['sequence']:012}"
        partial = self._folder / f".{name}.part"
        pq.write_table(pa.Table.from_pylist(self._rows, SCHEMA), partial)
        partial.replace(self._folder / f"{name}.parquet")
        self._rows = []
