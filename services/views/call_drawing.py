"""How `gyre call` draws what `call_of` found."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from services.views.terminal import one_line, paragraphs, show

_WIDTH = 100
"""Characters of a message on its line."""
_ENDS = 3
"""Matched messages that are shown at either end of a longer history."""
_TAIL = 400
"""Characters of the matched prefix that are shown before the cut."""
_LONG = 4000
"""Characters of new input or output up to which all is shown."""
Found = dict[str, Any]


def draw(found: Found, console: Console, *, full: bool = False) -> None:
    """Draw a call; `full`: texts and histories whole."""
    show(console, _lines(found, full))


def _lines(found: Found, full: bool) -> Iterator[Text]:
    record = found["record"]
    head = Text(f"call {found['call']}", "bold")
    if record is None:
        yield head.append("  has no record: it was never answered", "yellow")
        yield from _events(found["events"])
        return
    turn = "" if record["kind"] == "turn" else f", {record['kind']}"
    leaf = f", leaf ({found['leaf']})" if found.get("leaf") else ""
    yield head.append(
        f"  call {record['index']} of {found['execution']}, {record['thread'] or 'no thread'}{turn}{leaf}", "default"
    )
    if found["node"]:
        yield from _matching(found, full)
    else:
        yield _row("rejected", found["why"], "red")
    yield from _output(found, full)
    yield from _made(found)
    yield from _events(found["events"])


def _matching(found: Found, full: bool) -> Iterator[Text]:
    """What was known of the history, what was new, and the exact input with the cut between them."""
    record, matched, new = found["record"], found["matched"], found["new"]
    parent = f"{record['parent']}, {found['cut']}" if record["parent"] else found["cut"]
    yield _row("parent", parent)
    if record["fallback"]:
        yield _row("fallback", record["fallback"], "yellow")
    if found["children"]:
        yield _row("children", ", ".join(found["children"]))
    yield _row("matched", f"{len(matched)} messages, {record['prefix_tokens']} tokens")
    short = not full and len(matched) > 2 * _ENDS
    yield from map(_message, matched[:_ENDS] if short else matched)
    if short:
        yield Text(f"            ... {len(matched) - 2 * _ENDS} more (--full shows them)", "dim")
        yield from map(_message, matched[-_ENDS:])
    yield _row("new", f"{len(new)} messages, {found['input_tokens']} tokens")
    yield from map(_message, new)
    yield _row("input", f"{record['prefix_tokens']} + {found['input_tokens']} tokens")
    if found["input_text"] is not None:
        yield Text(paragraphs(_last(found["prefix_text"], full)), "dim")
        yield Text(f"──── cut: {record['prefix_tokens']} tokens as they were, {found['input_tokens']} new ────", "bold")
        yield Text(paragraphs(_first(found["input_text"], full)))


def _output(found: Found, full: bool) -> Iterator[Text]:
    record = found["record"]
    delivered = "delivered" if record["delivered"] else "not delivered to any client"
    yield _row("output", f"{found['output_tokens']} tokens, finish {record['finish']}, {delivered}")
    if found["output_text"] is not None:
        yield Text(paragraphs(_first(found["output_text"], full)), "green")


_TOLD = frozenset((
    "execution", "call", "index", "thread", "kind", "parent", "prefix_tokens", "prefix_messages", "finish", "delivered",
    "message_ends", "sampling", "versions", "cells", "cached_tokens", "queue_seconds", "engine_seconds",
    "total_seconds", "system_digest", "fallback", "fallback",
))  # fmt: skip
"""Fields of a record that have their place in the drawing."""


def _made(found: Found) -> Iterator[Text]:
    """How it was sampled, where and how fast; and whatever else the record holds."""
    record = found["record"]
    yield _row("sampling", ", ".join(f"{name} {value}" for name, value in record["sampling"].items()))
    yield _row("versions", ", ".join(f"v{each['version']} x {each['tokens']}" for each in record["versions"]) or "none")
    yield _row("cells", ", ".join(map(str, record["cells"])) or "none")
    spent = (f"{name} {record[f'{name}_seconds']:.3f} s" for name in ("queue", "engine", "total"))
    yield _row("timings", f"{', '.join(spent)}; {record['cached_tokens']} tokens were cached")
    yield _row("stored", f"sequence {found['sequence']} of CALL, {found['time']}; root {record['system_digest'][:12]}")
    for name, value in record.items():
        if name not in _TOLD and value not in ("", None, [], {}):
            yield _row(name, one_line(value if isinstance(value, str) else json.dumps(value), _WIDTH))


def _events(events: Sequence[Found]) -> Iterator[Text]:
    for event in events:
        about = {
            key: value for key, value in event.items() if key not in ("sequence", "time", "type", "execution", "call")
        }
        told = ", ".join(f"{key} {value}" for key, value in about.items())
        yield Text(f"{event['sequence']:>9}  {event['type']}  ", "yellow").append(one_line(told, 2 * _WIDTH), "default")


def _message(message: Found) -> Text:
    """Role and text on one line; an answer of the policy is green."""
    calls = " ".join(
        f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())
    )
    said = " ".join(part for part in (message.get("content") or "", calls) if part)
    answer = message.get("answer", False)
    text = Text(f"            {message['role']:<10} ").append(one_line(said, _WIDTH), "green" if answer else "default")
    return text.append(f"  (answer of {message['call']})", "dim") if answer else text


def _row(name: str, value: str, style: str = "default") -> Text:
    return Text(f"{name:<10}", "bold").append(f"  {value}", style)


def _last(text: str, full: bool) -> str:
    return (
        text if full or len(text) <= _TAIL else f"... {len(text) - _TAIL} characters before (--full)\n{text[-_TAIL:]}"
    )


def _first(text: str, full: bool) -> str:
    return text if full or len(text) <= _LONG else f"{text[:_LONG]}\n... {len(text) - _LONG} characters more (--full)"
