"""A recorded run as often as wanted, one after the other in one log: the mix, sizes and order of a real one.

Each copy has groups, executions, steps and commits of its own; what it adds up to is known from the copies' number.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bus.archive_file import read_lines
from bus.archive_lines import Header, Message
from schemas.speakers import Stream
from schemas.upcast import load

RUN = Path(__file__).parents[1] / "tests" / "data" / "runs" / "small.jsonl.zst"
_NAMED = re.compile(rb'(?<!\\)"([xg])(\d+)(?=[-"])')
_COUNTED = re.compile(rb'(?<!\\)"(step|version|index)":(\d+)(?=[,}])')
_COMMIT = re.compile(rb'"commit":"')
_SPAN = 1000
"""More than the groups or steps of a recorded run."""


@dataclass(slots=True)
class Truth:
    """What a log adds up to: events by type, and sums of some of their fields."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    tokens: int = 0
    """Generated."""
    sequences: int = 0

    @property
    def events(self) -> int:
        """All of them."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class _Said:
    stream: Stream
    subject: str
    data: bytes
    counts: Counter[str]
    seconds: float
    tokens: int


class Copies:
    """Messages of a log that repeats a recorded run; `truth` is of those that were given."""

    def __init__(self, path: Path = RUN) -> None:
        """Read the recorded run, each message by the models."""
        self.run, self._said = "", list[_Said]()
        for line in read_lines(path):
            if isinstance(line, Header):
                self.run = line.run
            if isinstance(line, Message):
                self._said.append(_said(line))
        self.truth = Truth()
        self.heads: Counter[Stream] = Counter()

    def of(self, stream: Stream, events: int) -> Iterator[tuple[str, bytes]]:
        """(subject, stored bytes) of one stream, of whole copies until the log would have so many events in all."""
        for copy in range(self.needed(events)):
            for said in self._said:
                if said.stream == stream:
                    self._add(said)
                    yield said.subject, said.data if copy == 0 else _renamed(said.data, copy)

    def needed(self, events: int) -> int:
        """Copies that have so many events."""
        return -(-events // sum(sum(said.counts.values()) for said in self._said))

    def _add(self, said: _Said) -> None:
        self.heads[said.stream] += 1
        self.truth.counts += said.counts
        self.truth.seconds += said.seconds
        self.truth.tokens += said.tokens
        self.truth.sequences += self.heads[said.stream] * sum(said.counts.values())


def _said(line: Message) -> _Said:
    events = load(line.data).events
    return _Said(
        stream=line.stream,
        subject=line.subject,
        data=line.data,
        counts=Counter(event.type for event in events),
        seconds=sum(getattr(event, "seconds", 0.0) for event in events),
        tokens=sum(len(getattr(event, "output_ids", b"")) // 4 for event in events),
    )


def _renamed(data: bytes, copy: int) -> bytes:
    def name(found: re.Match[bytes]) -> bytes:
        return b'"%s%d' % (found[1], int(found[2]) + copy * _SPAN)

    def number(found: re.Match[bytes]) -> bytes:
        return b'"%s":%d' % (found[1], int(found[2]) + copy * (0 if found[1] == b"index" else _SPAN))

    return _COMMIT.sub(b'"commit":"%d-' % copy, _COUNTED.sub(number, _NAMED.sub(name, data)), count=1)
