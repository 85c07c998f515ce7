"""Server-sent events as bytes."""

from typing import Any

import orjson

CONTENT_TYPE = "text/event-stream"


def data(value: dict[str, Any]) -> bytes:
    """An event without a name, as chat completions send them."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named(value: dict[str, Any]) -> bytes:
    """An event named by its own `type`, as the Messages and Responses APIs send them."""
    return b"event: " + str(value["type"]).encode() + b"\n" + data(value)
