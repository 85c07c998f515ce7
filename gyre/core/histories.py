"""The messages behind a call, put together from request records alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.calls import ModelCallRecorded

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a history."""

    message: Json
    call: str
    """The call that first held it: as its input, or as the answer that it was given."""
    answer: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call was asked: what was matched in its parent's history, and what was new."""

    matched: tuple[Entry, ...]
    new: tuple[Entry, ...]


def asked(records: Mapping[str, ModelCallRecorded], call: str) -> Asked:
    """Both parts of a call's history. Raises KeyError for a call that no record is of, or whose ancestor none is of."""
    line = [records[call]]
    while line[-1].parent is not None:
        line.append(records[line[-1].parent])
    known: list[Entry] = []
    for record in reversed(line):
        known = known[: record.prefix_messages]
        new = _entries(record.messages, record.call, answer=False)
        if record.call == call:
            return Asked(tuple(known), new)
        known += [*new, *_entries(record.reply, record.call, answer=True)]
    raise AssertionError("a line of calls ends with the call itself")


def _entries(text: str, call: str, *, answer: bool) -> tuple[Entry, ...]:
    return tuple(Entry(message, call, answer) for message in json.loads(text))
