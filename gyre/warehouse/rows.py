"""A message of the log as rows of the warehouse: one for each event, keyed by (run, stream, sequence, index).

A row is a line of tab-separated values, made from the stored bytes without the models: a commit whose fields are those
of today's models is taken as it is. Any other goes through the models, which lift what was said in an older version and
refuse what is no commit. Values inside an event are not checked again here: what the run's own readers refused is an
EventQuarantined in the log.

`text` holds an event's fields as they are, but for packed arrays (token ids, log-probabilities, masks, sketches): SQL
can do little with them, and the log keeps them. What is asked of them is counted here. A message without any event
still gives a row, so that the sequences in the warehouse have no gaps; so does one that nobody can read.
"""

import base64
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import orjson

from schemas.base import Model, floats
from schemas.envelope import COMMIT, Commit
from schemas.speakers import Stream
from schemas.upcast import Malformed, current_version, event_models, load, refuse_misplaced

MALFORMED = "Malformed"
"""Type of the row of a message that no model accepts; its body holds the subject and the reason."""

Payload = dict[str, Any]
Packed = dict[str, Any]
"""A field's name -> True, or what of it is left out."""

_ENVELOPE = frozenset(Commit.model_fields)
_NAME = "[A-Za-z0-9_-]{1,128}"
_SAID = re.compile(rf"{_NAME}\t{_NAME}\t{_NAME}\t\d{{1,19}}\t\d{{1,19}}\t{_NAME}", re.ASCII)
"""What a commit says of itself: service, instance, commit, causation, as_of, correlation."""
_TIMES = range(1, 1 << 63)
"""What the column `ns` holds of them: a larger one would wrap around."""


def lines(run: str, stream: Stream, sequence: int, subject: str, data: bytes) -> list[bytes]:
    """The rows of one message, each a line without its end.

    Args:
        run: whose log it is.
        stream: EV or CALL.
        sequence: of the message in its stream.
        subject: under which it was stored.
        data: the stored bytes; of a claim check, those that it stands for.
    """
    place = f"{run}\t{stream}\t{sequence}\t"
    try:
        rows = _rows(place, subject, data)
        if rows is None:
            commit = load(data)
            rows = _rows(place, subject, COMMIT.dump_json(commit))
    except Malformed as error:
        return [unreadable(run, stream, sequence, subject, error.reason)]
    if rows is None:  # the models set numbers no bounds, and have written everything else as it should be
        return [unreadable(run, stream, sequence, subject, "a number in it is larger than a row holds", commit.commit)]
    return rows


def unreadable(run: str, stream: Stream, sequence: int, subject: str, reason: str, commit: str = "") -> bytes:
    """The row of a message that cannot be read, or of a commit that no row can hold."""
    text = orjson.dumps({"subject": subject, "reason": reason}).replace(b"\\", b"\\\\")
    return f"{run}\t{stream}\t{sequence}\t0\t1\t0\t\t\t{commit}\t0\t0\t\t{MALFORMED}\t0\t".encode() + text


def _rows(place: str, subject: str, data: bytes) -> list[bytes] | None:
    """The rows of a commit that has the fields of today's models; None: the models have to look at it.

    Raises Malformed for one that may not stand under its subject.
    """
    try:
        commit = orjson.loads(data)
        said = _said(commit)
        if said is None:
            return None
        refuse_misplaced(subject, commit["run"], commit["producer"]["service"])
        events = commit["events"]
        of = len(events)
        return [
            f"{place}{index}\t{of}\t{said}\t{event['type']}\t{event['v']}\t".encode() + _text(event)
            for index, event in enumerate(events)
        ]
    except Malformed:
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _said(commit: Payload) -> str | None:
    """What a commit says of itself, as values of a row; None where its fields or its events' are not the models'."""
    producer, time = commit["producer"], commit["time"]
    said = (
        f"{producer['service']}\t{producer['instance']}\t{commit['commit']}\t{commit['causation']}"
        f"\t{commit['as_of']}\t{commit['correlation']}"
    )
    known = bool(commit["events"]) and all(_has_the_fields(event) for event in commit["events"])
    if not known or commit.keys() != _ENVELOPE or type(time) is not int or time not in _TIMES:
        return None
    if not _SAID.fullmatch(said):
        return None
    return f"{time}\t{said}"


def _has_the_fields(event: Payload) -> bool:
    """Of its model of today; those that came later are left out where nothing is said."""
    every, later = _FIELDS[event["type"], event["v"]]
    return type(event["v"]) is int and every - later <= event.keys() <= every


def _text(event: Payload) -> bytes:
    """An event's fields as JSON, without `type` and `v`, without packed arrays, with what was counted in them."""
    kind = event.pop("type")
    del event["v"]
    if kind in _PACKED:
        counted = _COUNTED[kind](event) if kind in _COUNTED else {}
        _strip(event, _PACKED[kind])
        event |= counted
    return orjson.dumps(event).replace(b"\\", b"\\\\")


def _strip(value: Payload, packed: Packed) -> None:
    for name, inner in packed.items():
        if inner is True:
            del value[name]
        else:
            parts = value[name]
            for part in parts if isinstance(parts, list) else (parts,):
                if part is not None:
                    _strip(part, inner)


def _call(event: Payload) -> Payload:
    """Tokens, and the names of the tools that the answer calls, in order."""
    return {
        "input_tokens": _numbers(event["input_ids"]),
        "output_tokens": _numbers(event["output_ids"]),
        "tools": _tools(event["reply"]) if '"tool_calls"' in event["reply"] else [],
    }


def _numbers(packed: str) -> int:
    """How many numbers of four bytes a base64 text holds."""
    return (len(packed) * 3 // 4 - packed.count("=", -2)) // 4


def _tools(reply: str) -> list[str]:
    try:
        return [
            str(made["function"]["name"]) for message in orjson.loads(reply) for made in message.get("tool_calls") or ()
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _evaluation(event: Payload) -> Payload:
    """Scores in the order of the held-out tasks; null where none was valid."""
    scores = floats(base64.urlsafe_b64decode(event["scores"]))
    return {"scores": [None if math.isnan(score) else score for score in scores]}


_COUNTED: Mapping[str, Callable[[Payload], Payload]] = {
    "ModelCallRecorded": _call,
    "EvaluationScored": _evaluation,
}


def _packed(model: type[Model]) -> Packed:
    """The packed arrays of a model and of its parts: found in its fields, so that new events need no line here."""
    found: Packed = {}
    for name, field in model.model_fields.items():
        if field.annotation is bytes:
            found[name] = True
        elif (inner := _part(field.annotation)) is not None and (excluded := _packed(inner)):
            found[name] = excluded
    return found


def _part(annotation: Any) -> type[Model] | None:
    """The model inside an annotation: itself, of an optional field or of a tuple's members."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((part for each in get_args(annotation) if (part := _part(each)) is not None), None)


_FIELDS = {
    (kind, current_version(model)): (
        frozenset(model.model_fields),
        frozenset(name for name, each in model.model_fields.items() if each.exclude_if is not None),
    )
    for kind, model in event_models().items()
}
_PACKED = {kind: packed for kind, model in event_models().items() if (packed := _packed(model))}
