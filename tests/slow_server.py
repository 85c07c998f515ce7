"""A nats-server that reads its store for as long as a test wants it to."""

import logging
import os
import threading
from pathlib import Path

import pytest

from bus import server


class SlowServer(logging.Handler):
    """Every server that is started meanwhile waits at a gate; a word is said at once where one is waited for."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        """Stands in for the binary."""
        super().__init__()
        self._gate, self._told = folder / "gate", threading.Event()
        os.mkfifo(self._gate)
        script = folder / "nats-server"
        script.write_text(f"#!/bin/sh\nread -r _ <'{self._gate}'\nexec '{server.binary()}' \"$@\"\n")
        script.chmod(0o755)
        patch.setattr(server, "binary", lambda: str(script))
        patch.setattr(server, "_QUIET_SECONDS", 0.0)
        patch.setattr(server.LOG, "handlers", [self])

    def emit(self, record: logging.LogRecord) -> None:
        """Somebody waits for it."""
        if "does not answer yet" in record.getMessage():
            self._told.set()

    def until_waited_for(self) -> None:
        """Returns when a start waits for a server that is alive and says nothing."""
        assert self._told.wait(60)

    def read(self) -> None:
        """Let the one that waits at the gate through."""
        self._gate.write_text("\n")
