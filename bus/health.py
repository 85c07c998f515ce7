"""What a nats-server says about its own health, over the monitoring port that it has on the loopback interface.

A stream whose write failed (a full disk, a broken one) refuses silently from then on, also once there is room again:
only a new process writes to it. No request on NATS tells; this page does.
"""

import http.client
from typing import Any

import orjson

_ANSWER_SECONDS = 2.0


def trouble(host: str, port: int) -> str:
    """Why the server cannot do its work, in one line; "" when it can, or when it does not answer here."""
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/healthz")
        found: Any = orjson.loads(connection.getresponse().read())
        return " ".join(str(found.get("error", "")).split())
    except (OSError, ValueError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
