"""What the server says to a publish, and which error it is for the caller."""

import re
from typing import NamedTuple

import orjson

from bus.errors import BusError, NoStream, Refused, StreamFull

WRONG_LAST = (10071, 10164)
DUPLICATE_IN_BATCH = 10201
STREAM_NOT_FOUND = 10059
_FULL = (10077, 10023, 10047)
_PASSING = (10008, 10009, 10074, 10176, 10210, 10211)
"""Not now: no quorum, no leader, a batch that was interrupted, too many batches open."""

_FOUND = re.compile(r"wrong last sequence: (\d+)")


class Answer(NamedTuple):
    """`sequence` > 0: stored there. Otherwise `code` and `text` of the refusal; code 0: nobody listened."""

    sequence: int
    code: int = 0
    text: str = ""

    @property
    def passing(self) -> bool:
        """Whether trying again later makes sense."""
        return self.sequence == 0 and (self.code == 0 or self.code in _PASSING)


def read(data: bytes) -> Answer:
    """Parse a publish acknowledgement or error; empty bytes are the answer of nobody."""
    if not data:
        return Answer(0, 0, "no stream listens on this subject")
    said = orjson.loads(data)
    if "error" in said:
        return Answer(0, int(said["error"].get("err_code", -1)), str(said["error"].get("description", "")))
    return Answer(said.get("seq", 0))


def found_sequence(answer: Answer) -> int:
    """The last sequence that a wrong-last-sequence refusal names; -1 where it names none, as several servers do."""
    match = _FOUND.search(answer.text)
    return int(match.group(1)) if match else -1


def failure(subject: str, answer: Answer) -> BusError:
    """The error for a refusal that is final."""
    if answer.code in _FULL:
        return StreamFull(
            f"subject {subject}: the stream is full ({answer.text}); raise its size limit and resume the run"
        )
    if answer.code == 0:
        return NoStream(f"subject {subject}: {answer.text}; provision the run first")
    return Refused(f"subject {subject}: the server refused it, {answer.code} {answer.text}")
