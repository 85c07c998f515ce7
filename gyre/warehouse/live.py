"""Asking a warehouse whose folder another process holds: the sink of a run that goes on answers for it.

A sink that holds a folder says in it at which socket it answers (`DESK`). A request is a line of JSON, {"sql",
"parameters", "form"} or {"reach": {"EV": 12, "CALL": 3}}; an answer is a line {"size"} and as many bytes, or a line
{"error", "kind"}. Only whoever may read the folder may ask; nobody can write.
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.warehouse.engine import QueryRefused, WarehouseAway, WarehouseError

DESK = "desk.json"
PATIENCE_SECONDS = 60.0
_KINDS: Mapping[str, type[WarehouseError]] = {
    each.__name__: each for each in (QueryRefused, WarehouseAway, WarehouseError)
}


class Live:
    """A warehouse behind a sink that runs; one question at a time."""

    def __init__(self, folder: Path) -> None:
        """Ask whoever holds the folder. Raises `WarehouseAway`: nobody answers for it."""
        self.name = str(folder)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_SECONDS)
        try:
            self._socket.connect(json.loads((folder / DESK).read_bytes())["socket"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._socket.close()
            raise WarehouseAway(f"warehouse {self.name}: no sink answers for it ({error})") from error
        self._file = self._socket.makefile("rb")

    def query(self, sql: str, parameters: Mapping[str, Any], form: str = "JSONEachRow") -> bytes:
        """See `Answering`."""
        return self._asked({"sql": sql, "parameters": dict(parameters), "form": form})

    def reach(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Wait until the warehouse holds each stream up to a sequence; returns where it is, by stream."""
        found: dict[str, int] = json.loads(self._asked({"reach": dict(positions)}))
        return found

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def _asked(self, request: Mapping[str, Any]) -> bytes:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            said = json.loads(self._file.readline() or b"{}")
            body = self._file.read(said.get("size", 0))
        except (OSError, ValueError) as error:
            raise WarehouseAway(f"warehouse {self.name}: its sink does not answer ({error})") from error
        if "error" in said:
            raise _KINDS.get(said.get("kind", ""), WarehouseError)(said["error"])
        if "size" not in said or len(body) < said["size"]:
            raise WarehouseAway(f"warehouse {self.name}: its sink has ended; ask again")
        return bytes(body)
