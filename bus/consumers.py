"""Position lives with state: a projector keeps (state, last sequence) in one file that is replaced at once.

A snapshot is a cache: one that is missing, damaged, of another shape or of another run only costs the time to fold
the log again.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from bus.blobs import sync_folder
from bus.log import Stored
from schemas.envelope import Event

LOG = logging.getLogger(__name__)
State = TypeVar("State")


class SequenceGap(Exception):
    """A message was fed that is not the next one: the position would lie."""


class Snapshot(NamedTuple, Generic[State]):
    """A state and the last sequence folded into it."""

    state: State
    sequence: int


class SnapshotFile(Generic[State]):
    """One snapshot in one file: written whole or not at all."""

    def __init__(self, path: Path, adapter: TypeAdapter[State], code: str) -> None:
        """`code` names what else the state depends on: run, meaning of the fold. A change of shape is noticed alone."""
        self._path, self._adapter = path, adapter
        shape = orjson.dumps(adapter.json_schema(), option=orjson.OPT_SORT_KEYS)
        self._code = hashlib.sha256(shape + code.encode()).hexdigest()

    def load(self) -> Snapshot[State] | None:
        """The last snapshot saved, or None when there is none that can be used."""
        try:
            kept = orjson.loads(self._path.read_bytes())
            if kept["code"] != self._code:
                return None
            return Snapshot(self._adapter.validate_json(kept["state"]), int(kept["sequence"]))
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return None

    def save(self, state: State, sequence: int) -> None:
        """Replace the file durably; blocks for the disk. Raises `OSError`; nothing stays behind then."""
        kept = {"code": self._code, "sequence": sequence, "state": self._adapter.dump_json(state).decode()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            with partial.open("wb") as file:
                file.write(orjson.dumps(kept))
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._path)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(self._path.parent)

    def delete(self) -> None:
        """Forget it."""
        self._path.unlink(missing_ok=True)


class Projection(Generic[State]):
    """A fold over a log that remembers how far it got.

    Feed it every message in order (`Log.read(projection.sequence)`): what no model accepts is stepped over, what was
    folded before is ignored. Of a whole log the next sequence alone will do; under filters the reader vouches that none
    is missing.
    """

    def __init__(
        self,
        initial: State,
        evolve: Callable[[State, int, Event], State],
        file: SnapshotFile[State] | None = None,
        every: int = 1000,
        seconds: float = 0.0,
        *,
        whole: bool = True,
    ) -> None:
        """Begin at the file's snapshot, or at nothing; save after so many sequences, but not twice in `seconds`.

        A save waits for the disk: one a second keeps a tail that is being caught up with from waiting dozens of times.
        """
        kept = file.load() if file else None
        self.state, self.sequence = kept or (initial, 0)
        self._evolve, self._file, self._every, self._seconds = evolve, file, every, seconds
        self._whole = whole
        self._saved, self._saved_at = self.sequence, time.monotonic()

    def feed(self, stored: Stored) -> bool:
        """Fold one message; False when it was folded before. `SequenceGap` when a whole log's next one is missing."""
        if stored.sequence <= self.sequence:
            return False
        if self._whole and stored.sequence != self.sequence + 1:
            raise SequenceGap(f"sequence {stored.sequence}: expected {self.sequence + 1}; read from there")
        if stored.commit is not None:
            for event in stored.commit.events:
                self.state = self._evolve(self.state, stored.sequence, event)
        self.sequence = stored.sequence
        if self.sequence - self._saved >= self._every and time.monotonic() - self._saved_at >= self._seconds:
            self.save()
        return True

    def save(self) -> None:
        """Save now; nothing happens without a file or without news. A disk that is full only costs the cache."""
        if self._file is None or self.sequence <= self._saved:
            return
        self._saved, self._saved_at = self.sequence, time.monotonic()
        try:
            self._file.save(self.state, self.sequence)
        except OSError as error:
            LOG.warning("snapshot not saved: %s", error)
