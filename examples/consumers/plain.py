"""A consumer with nothing of gyre's: plain nats-py, and what `gyre attach` puts into the environment.

    pip install nats-py
    gyre attach --exec "python examples/consumers/plain.py" demo

Prints each optimizer step. It may ask the server for its next messages, and nothing else.
"""

import asyncio
import json
import os
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

BATCH = 100
REQUEST = json.dumps({"batch": BATCH, "expires": 5_000_000_000}).encode()


class Reader:
    """Asks for so many messages at a time, and for more once they have come: a slow one never has more waiting."""

    def __init__(self, connection: Client, said: dict[str, str]) -> None:
        """`said`: the environment."""
        self._connection, self._inbox = connection, connection.new_inbox()
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{said['GYRE_STREAM']}.{said['GYRE_CONSUMER']}"
        self._after, self._until = int(said["GYRE_AFTER"]), int(said["GYRE_UNTIL"] or 0)
        self._left, self._finished = 0, asyncio.Event()

    async def run(self) -> None:
        """Read until the run says that it is finished, or, of one at rest, up to its last sequence."""
        if self._until and self._after >= self._until:
            return
        await self._connection.subscribe(self._inbox, cb=self._take)
        await self._more()
        await self._finished.wait()

    async def _more(self) -> None:
        self._left = BATCH
        await self._connection.publish(self._next, REQUEST, reply=self._inbox)

    async def _take(self, message: Msg) -> None:
        if not message.reply:  # a status: nothing came for a while
            await self._more()
            return
        sequence = message.metadata.sequence.stream
        if sequence > self._after + 1:
            raise SystemExit(f"gap: expected {self._after + 1}, found {sequence}; attach again from there")
        if sequence == self._after + 1:  # a server that was killed may send the last ones again
            self._after = sequence
            if handle(sequence, json.loads(message.data)) or sequence == self._until:
                self._finished.set()
        self._left -= 1
        if self._left == 0:
            await self._more()


def handle(sequence: int, commit: dict[str, Any]) -> bool:
    """Print what is wanted of a commit; whether it is the run's last. A claim check (`blob`) has no events here."""
    events = commit.get("events", [])
    for event in events:
        if event["type"] == "OptimizerStepped":
            print(sequence, event["step"], event["seconds"], flush=True)
    return any(event["type"] == "RunFinished" for event in events)


async def denied(error: Exception) -> None:
    """What the server does not allow, it says here."""
    raise SystemExit(f"the server says: {error}")


async def main() -> None:
    """Connect as whoever `gyre attach` says; answers come to one's own inbox only."""
    said = dict(os.environ)
    connection = await nats.connect(
        said["GYRE_NATS_URL"],
        user=said["GYRE_NATS_USER"],
        password=said["GYRE_NATS_PASSWORD"],
        inbox_prefix=said["GYRE_INBOX"].encode(),
        error_cb=denied,
    )
    await Reader(connection, said).run()
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
