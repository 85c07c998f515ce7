"""Recorded traffic of a harness: JSON lines, in the order of time, as a stub in its model's place wrote them.

``request`` (n, method, path, headers as pairs, body), ``scripted_response`` (n, blocks: text, thinking, or tool with
raw args and an id), then how the exchange ended: ``response`` (status), ``early_eof`` or ``reset`` (the answer broke
off), ``client_gone`` (the client did not wait for it). Other lines are passed over. Tools that are those of an earlier
request may be written ``{"$same_tools_as_request": n}``. A text may be replaced by ``<<text len=N sha=H head='...'>>``:
equal texts stay equal, and the head is put before it, where marks stand.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gyre.errors import GyreError
from gyre.proxy import probes
from gyre.proxy.normalise import Json, canonical

Fate = Literal["answered", "refused", "cut", "gone", "open"]
_FATES: dict[str, Fate] = {"early_eof": "cut", "reset": "cut", "client_gone": "gone"}
_OK = 200
_CUT_SHORT = frozenset(("max_tokens", "length", "model_context_window_exceeded"))
_PLACEHOLDER = re.compile(r"<<text len=\d+ sha=\w+ head=(['\"])(.*?)\1(?: markers=[^>]*)?>>", re.DOTALL)


class RecordingUnreadable(GyreError):
    """A line is none of the format, or names what is not there; the message tells the line."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A scripted tool call."""

    id: str
    name: str
    arguments: str
    """Raw text."""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """What the stub was told to answer."""

    thinking: str = ""
    text: str = ""
    tools: tuple[Tool, ...] = ()
    length: bool = False
    """Whether it was cut by a limit of tokens."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call as recorded."""

    number: int
    path: str
    """Without its query."""
    headers: dict[str, str]
    """Names in lower case."""
    body: Json
    said: Said
    fate: Fate
    repeated: bool
    """Whether the same body comes again later."""


@dataclass(frozen=True, slots=True)
class Step:
    """A moment: an exchange begins, or is over."""

    exchange: Exchange
    over: bool


def read(lines: Iterable[str | bytes]) -> tuple[Step, ...]:
    """The model calls of a recording, each as two steps in the order of time; probes are left out.

    Raises:
        RecordingUnreadable: naming the line.
    """
    events = list(_events(lines))
    posts = {event["n"]: event for event in events if _asks(event)}
    bodies = {number: _body(number, posts) for number in posts}
    last = {canonical(body): number for number, body in bodies.items()}
    said = {event["n"]: event for event in events if event["ev"] == "scripted_response"}
    ends = {event["n"]: event for event in events if _ends(event)}
    exchanges = {
        number: _exchange(post, bodies[number], said.get(number), ends.get(number), last)
        for number, post in posts.items()
    }
    order = [(event["n"], _ends(event)) for event in events if event["ev"] == "request" or _ends(event)]
    return tuple(Step(exchanges[number], over) for number, over in order if number in exchanges)


def _events(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise RecordingUnreadable(f"line {place}: is not JSON: {error}") from error
        if not isinstance(event, dict) or not isinstance(event.get("ev"), str):
            raise RecordingUnreadable(f'line {place}: must be an object with an event\'s name in "ev"')
        if isinstance(event.get("n"), int):
            yield event


def _asks(event: Json) -> bool:
    """Whether an event is a model call and no probe."""
    counts = probes.api_of(str(event.get("path", ""))) == probes.COUNT
    return event["ev"] == "request" and event.get("method") == "POST" and not counts


def _ends(event: Json) -> bool:
    return event["ev"] == "response" or event["ev"] in _FATES


def _body(number: int, posts: dict[int, Json]) -> Json:
    body = posts[number].get("body")
    if not isinstance(body, dict):
        raise RecordingUnreadable(f"request {number}: its body must be an object")
    tools = body.get("tools")
    if isinstance(tools, dict):
        other = posts.get(tools.get("$same_tools_as_request", -1), {}).get("body")
        if not isinstance(other, dict) or not isinstance(other.get("tools"), list):
            raise RecordingUnreadable(f"request {number}: takes tools from a request without any")
        body = {**body, "tools": other["tools"]}
    shown = _shown(body)
    assert isinstance(shown, dict)
    return shown


def _exchange(post: Json, body: Json, said: Json | None, end: Json | None, last: dict[str, int]) -> Exchange:
    headers = post.get("headers") or []
    return Exchange(
        number=post["n"],
        path=str(post.get("path", "")),
        headers={str(name).lower(): str(value) for name, value in headers},
        body=body,
        said=_said(said or {}),
        fate=_fate(said or {}, end),
        repeated=last[canonical(body)] > post["n"],
    )


def _fate(said: Json, end: Json | None) -> Fate:
    if end is None:
        return "open"
    if end["ev"] == "response":
        return "answered" if end.get("status") == _OK and "sse_error" not in said else "refused"
    return _FATES[end["ev"]]


def _said(event: Json) -> Said:
    blocks = [block for block in event.get("blocks", ()) if isinstance(block, dict)]
    return Said(
        thinking="".join(block["thinking"] for block in blocks if "thinking" in block),
        text="".join(block["text"] for block in blocks if "text" in block),
        tools=tuple(
            Tool(str(block.get("id", "")), str(block["tool"]), str(block.get("args", "")), str(block.get("ns", "")))
            for block in blocks
            if "tool" in block
        ),
        length=event.get("stop") in _CUT_SHORT,
    )


def _shown(value: object) -> object:
    """The value with the head of each replaced text before it."""
    if isinstance(value, str):
        found = _PLACEHOLDER.fullmatch(value)
        return f"{found.group(2).replace(chr(92) * 2 + 'n', chr(10))}{value}" if found else value
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return {key: _shown(item) for key, item in value.items()} if isinstance(value, dict) else value
