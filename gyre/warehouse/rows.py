"""A message of the log as rows of the warehouse: one for each event, keyed by (run, stream, sequence, index).

A row is a line of JSON, since both engines read lines of it quickest. Its `body` holds an event's fields as they are,
but for packed arrays (token ids, log-probabilities, masks, sketches): SQL can do little with them, and the log keeps
them. What is asked of them is counted here. A message without any event still gives a row, so that the sequences in the
warehouse have no gaps; so does one that nobody can read.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from schemas.base import Model, floats
from schemas.calls import ModelCallRecorded
from schemas.envelope import Commit, Event
from schemas.runs import EvaluationScored
from schemas.speakers import Stream

MALFORMED = "Malformed"
"""Type of the row of a message that no model accepts; its body holds the subject and the reason."""
EMPTY = "Empty"
"""Type of the row of a commit that says nothing."""

_TYPE = b'"type":"'
Excluded = dict[str, Any]
"""What pydantic's `exclude` takes: a field's name -> True, or what is left out of it."""


def lines(
    run: str, stream: Stream, sequence: int, subject: str, commit: Commit | None, reason: str = ""
) -> list[bytes]:
    """The rows of one message, each a line without its end.

    Args:
        run: whose log it is.
        stream: EV or CALL.
        sequence: of the message in its stream.
        subject: under which it was stored.
        commit: what it says; None where that cannot be read.
        reason: why it cannot be read.
    """
    place = f'{{"run":"{run}","stream":"{stream}","sequence":{sequence},'
    if commit is None:
        body = orjson.dumps({"subject": subject, "reason": reason})
        return [f'{place}"index":0,"of":1,"type":"{MALFORMED}","body":'.encode() + body + b"}"]
    said = (
        f'"of":{max(1, len(commit.events))},"ns":{commit.time},"service":"{commit.producer.service}",'
        f'"instance":"{commit.producer.instance}","commit":"{commit.commit}","causation":{commit.causation},'
        f'"as_of":{commit.as_of},"correlation":"{commit.correlation}",'
    )
    if not commit.events:
        return [f'{place}{said}"index":0,"type":"{EMPTY}","body":{{}}}}'.encode()]
    return [
        f'{place}{said}"index":{index},"type":"{event.type}","v":{event.v},"body":'.encode() + body_of(event) + b"}"
        for index, event in enumerate(commit.events)
    ]


def kind_of(line: bytes) -> bytes:
    """The type of a row: nothing before it in a row can hold a quote."""
    start = line.index(_TYPE) + len(_TYPE)
    return line[start : line.index(b'"', start)]


def body_of(event: Event) -> bytes:
    """An event's fields as JSON, without `type` and `v`, without packed arrays, with what was counted in them."""
    model = type(event)
    dump, excluded, head = _form(model)
    body = b"{" + dump(event, exclude=excluded)[head:]
    counted = _COUNTED.get(model)
    return body if counted is None else body[:-1] + b"," + orjson.dumps(counted(event))[1:]


@cache
def _form(model: type[Any]) -> tuple[Callable[..., bytes], Excluded | None, int]:
    """How to write a model, what to leave out, and how long `type` and `v` are at the beginning of its JSON.

    Taking these off is cheaper than telling pydantic to leave them out.
    """
    fields = model.model_fields
    head = f'{{"type":"{fields["type"].default}","v":{fields["v"].default},'
    return TypeAdapter(model).dump_json, _packed(model) or None, len(head)


def _call(event: ModelCallRecorded) -> dict[str, Any]:
    """Tokens, and the names of the tools that the answer calls, in order."""
    return {
        "input_tokens": len(event.input_ids) // 4,
        "output_tokens": len(event.output_ids) // 4,
        "tools": _tools(event.reply) if '"tool_calls"' in event.reply else [],
    }


def _tools(reply: str) -> list[str]:
    return [
        str(made.get("function", {}).get("name", ""))
        for message in orjson.loads(reply)
        for made in message.get("tool_calls") or ()
    ]


def _evaluation(event: EvaluationScored) -> dict[str, Any]:
    """Scores in the order of the held-out tasks; null where none was valid."""
    return {"scores": [None if math.isnan(score) else score for score in floats(event.scores)]}


_COUNTED: Mapping[type[Any], Callable[[Any], dict[str, Any]]] = {
    ModelCallRecorded: _call,
    EvaluationScored: _evaluation,
}


def _packed(model: type[Model]) -> Excluded:
    """The packed arrays of a model and of its parts: found in its fields, so that new events need no line here."""
    found: Excluded = {}
    for name, field in model.model_fields.items():
        if field.annotation is bytes:
            found[name] = True
        elif (inner := _part(field.annotation)) is not None and (excluded := _packed(inner)):
            found[name] = {"__all__": excluded} if _is_many(field.annotation) else excluded
    return found


def _part(annotation: Any) -> type[Model] | None:
    """The model inside an annotation: itself, of an optional field or of a tuple's members."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((part for each in get_args(annotation) if (part := _part(each)) is not None), None)


def _is_many(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is tuple
