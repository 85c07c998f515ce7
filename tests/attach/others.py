"""Consumers that other people might write: a slow one, one that dies, and one that wants more than it may have."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nats

from bus.jetstream import Bus
from schemas.runs import TimerFired
from services.consumer import At

FORGED = b'{"run": "tried", "events": []}'


class Sleeper:
    """Sleeps on its first events, and then tells what it was given."""

    def __init__(self, file: str, events: str = "5", seconds: str = "0.2") -> None:
        self._file, self._left, self._seconds = Path(file), int(events), float(seconds)
        self._seen: list[list[int]] = []

    def handle(self, event: Any, at: At) -> None:
        if self._left:
            self._left -= 1
            time.sleep(self._seconds)
        self._seen.append([at.sequence, at.index])

    def close(self) -> None:
        self._file.write_text(json.dumps(self._seen))


class Stubborn:
    """Says that it has begun, and waits for what never comes."""

    def handle(self, event: Any, at: At) -> None:
        sys.stderr.write("begun\n")
        sys.stderr.flush()
        threading.Event().wait()


class Teller:
    """Says of each timer that it fired."""

    reads = (TimerFired,)

    def handle(self, event: TimerFired, at: At) -> None:
        sys.stderr.write(f"fired {event.timer}\n")
        sys.stderr.flush()


class Crasher:
    """Dies of its third event."""

    def __init__(self) -> None:
        self._seen = 0

    def handle(self, event: Any, at: At) -> None:
        self._seen += 1
        if self._seen == 3:
            os._exit(7)


class Asker:
    """Wants the whole bus, as a service has it."""

    async def handle(self, event: Any, at: At) -> None:
        said = os.environ
        await Bus.connect(said["GYRE_NATS_URL"], at.run, "reader", "one", Path("nowhere"), patience_seconds=10)


class Meddler:
    """Tries everything that it must not do, through a connection of its own, and keeps what the server says."""

    def __init__(self, file: str) -> None:
        self._file, self._denied = Path(file), list[str]()

    async def handle(self, event: Any, at: At) -> None:
        if self._denied:
            return
        said, run = os.environ, at.run

        async def note(error: Exception) -> None:
            self._denied.append(str(error))

        client = await nats.connect(
            said["GYRE_NATS_URL"], user=said["GYRE_NATS_USER"], password=said["GYRE_NATS_PASSWORD"], error_cb=note
        )
        other = "attached_15" if said["GYRE_NATS_USER"] != "attached_15" else "attached_14"
        subjects = (
            f"ev.{run}.cell.core", f"call.{run}.x", f"q.{run}.step.1.0", f"hint.{run}.heartbeat.0",
            f"cmd.{run}.cell.status", f"$JS.API.STREAM.DELETE.EV_{run}", f"$JS.API.STREAM.PURGE.CALL_{run}",
            f"$JS.API.CONSUMER.CREATE.EV_{run}.mine", f"$JS.API.CONSUMER.MSG.NEXT.EV_{run}.{other}",
            f"$JS.API.CONSUMER.MSG.NEXT.QSTEP_{run}.w", f"$JS.ACK.QSTEP_{run}.w.1.1.1.1.0",
            f"$JS.API.DIRECT.GET.EV_{run}", f"$JS.API.STREAM.INFO.EV_{run}", "_INBOX.scheduler.x",
        )  # fmt: skip
        for subject in subjects:
            await client.publish(subject, FORGED)
        for subject in (f"ev.{run}.>", f"call.{run}.>", "_INBOX.>", f"hint.{run}.>", "$JS.>", ">"):
            await client.subscribe(subject)
        while len(self._denied) < len(subjects) + 6:
            await client.flush()
        await client.close()

    def close(self) -> None:
        self._file.write_text(json.dumps(self._denied))


class Strange:
    """Reads what nobody says."""

    reads = (Path,)

    def handle(self, event: Any, at: At) -> None:
        raise AssertionError
