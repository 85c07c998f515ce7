"""What an attached consumer is: a class with `handle`, which events it reads, and a position that lives with its state.

from schemas.training import OptimizerStepped

class Consumer:
    reads = (OptimizerStepped,)

    def handle(self, event, at):
        print(at.id, event.step, event.seconds)
"""

import fcntl
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TextIO

from bus import subjects
from gyre.errors import GyreError
from schemas.envelope import Commit
from schemas.speakers import SPEAKERS, Stream, stream_of
from schemas.upcast import event_models


class ConsumerError(GyreError):
    """What was named cannot be attached; one line with the way out."""


class NotYet(GyreError):
    """Raised by a consumer's `save`: what it was given is not dealt with, and nothing is kept this time."""


@dataclass(frozen=True, slots=True)
class At:
    """Where an event stands."""

    run: str
    stream: Stream
    sequence: int
    """Of its commit, in its log."""
    index: int
    """Within its commit."""
    subject: str
    commit: Commit

    @property
    def id(self) -> str:
        """`SEQUENCE.INDEX`, as commands take it."""
        return f"{self.sequence}.{self.index}"

    @property
    def time(self) -> float:
        """When it was said, seconds since the epoch."""
        return self.commit.time / 1e9


class Consumer(Protocol):
    """What a class must have; besides, it may have

    - `reads`, a tuple of event models: what it is given; without, all events of EV. `ModelCallRecorded` is read from
      CALL, all others from EV; each log is in order by itself.
    - `save() -> Any`, what to keep beside the position (JSON), asked for about once a second and at the end: both are
      written as one, so that state is never ahead of or behind its position. Write what must not be lost in here; where
      that cannot be done, raise `NotYet`: what was kept last stays, and all since then is handed over again next time.
    - `load(kept)`, called first with what was kept last.
    - `stop()`, called when it is told to end, while `handle` or `save` may be at work in another thread: what waits in
      there for somebody else had better return.
    - `close()`, called last.
    """  # noqa: D415 - a list follows

    def handle(self, event: Any, at: At) -> Any:
        """Take one event; may be a coroutine. Events come in order, one at a time."""


@dataclass(slots=True)
class Position:
    """How far a consumer got, and what it keeps: one file, replaced as one."""

    file: Path | None
    consumer: str
    sequences: dict[str, int] = field(default_factory=dict)
    """Log -> the last sequence that was handled."""
    state: Any = None
    _lock: TextIO | None = None

    @classmethod
    def load(cls, file: Path | None, consumer: str) -> "Position":
        """Go on from a file, which is ours until the end of this process. Raises `ConsumerError`."""
        found = cls(file, consumer)
        if file is None:
            return found
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            found._lock = file.with_suffix(".lock").open("w")
            fcntl.flock(found._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = json.loads(file.read_text()) if file.exists() else {"position": {}, "state": None}
            found.sequences, found.state = dict(kept["position"]), kept["state"]
        except BlockingIOError:
            found.close()
            raise ConsumerError(
                f"durable {file.stem}: another consumer has this name now; choose another, or end it"
            ) from None
        except OSError as error:
            found.close()
            why = f"its position cannot be kept in {file.parent} ({error.strerror})"
            raise ConsumerError(f"durable {file.stem}: {why}; make that a folder of yours, or leave it out") from error
        except (ValueError, KeyError, TypeError) as error:
            found.close()
            raise ConsumerError(f"durable {file.stem}: {file} is damaged ({error}); delete it to begin anew") from error
        return found

    def close(self) -> None:
        """Let others have the name."""
        if self._lock is not None:
            self._lock.close()

    def save(self) -> None:
        """Replace the file durably, if there is one."""
        if self.file is None:
            return
        partial = self.file.with_suffix(f".{os.getpid()}")
        with partial.open("w") as file:
            json.dump({"consumer": self.consumer, "position": self.sequences, "state": self.state}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.file)


def load(name: str, options: Mapping[str, str]) -> Consumer:
    """Make the consumer that `module:Class` or `file.py:Class` names. Raises `ConsumerError`."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise ConsumerError(f"consumer {name!r}: write module:Class or file.py:Class")
    made = getattr(_module(place), attribute, None)
    if made is None:
        raise ConsumerError(f"consumer {name!r}: {place} has no {attribute}")
    try:
        consumer: Consumer = made(**options)
    except TypeError as error:
        raise ConsumerError(f"consumer {name!r}: cannot be made ({error}); see its options") from error
    if not callable(getattr(consumer, "handle", None)):
        raise ConsumerError(f"consumer {name!r}: has no method `handle(self, event, at)`")
    _check_reads(name, consumer)
    return consumer


def wanted(consumer: Consumer) -> frozenset[type] | None:
    """The models of the events that it is given; None for all of EV."""
    reads = getattr(consumer, "reads", None)
    return None if reads is None else frozenset(reads)


def streams_of(consumer: Consumer) -> tuple[Stream, ...]:
    """Which logs it reads."""
    kinds = wanted(consumer)
    if kinds is None:
        return ("EV",)
    return tuple(sorted({stream_of(kind.__name__) for kind in kinds}, reverse=True))


def filter_of(consumer: Consumer, run: str, stream: Stream) -> str:
    """The narrowest one filter under which all that it reads lies; "" for the whole log."""
    kinds = [kind.__name__ for kind in wanted(consumer) or () if stream_of(kind.__name__) == stream]
    speakers = {speaker for kind in kinds for speaker in SPEAKERS[kind]}
    return subjects.producer(run, speakers.pop()) if stream == "EV" and len(speakers) == 1 else ""


def _check_reads(name: str, consumer: Consumer) -> None:
    models = event_models()
    for kind in wanted(consumer) or ():
        if models.get(getattr(kind, "__name__", "")) is not kind:
            raise ConsumerError(f"consumer {name!r}: reads names {kind!r}, which is no event of `schemas`")


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None:
            raise ConsumerError(f"consumer file {place}: cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise ConsumerError(f"consumer {place}: cannot be imported ({error})") from error
    return module
