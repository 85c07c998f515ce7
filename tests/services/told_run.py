"""The run of tests/core/told.py as an archive, so that commands that draw it have a log with times to read."""

from pathlib import Path

from bus import subjects
from bus.archive import export_run
from bus.jetstream import Bus
from bus.server import NatsServer
from schemas.envelope import Commit, Producer
from tests.core.told import Told

BEGIN = 1_900_000_000_000_000_000
"""UTC nanoseconds of the told run's zero."""


async def archived(told: Told, folder: Path) -> Path:
    """A run of which this was said, each pair a commit of its time; its server is gone afterwards."""
    folder.mkdir()
    server = NatsServer(folder / "nats").start()
    path = folder.parent / "told.jsonl.zst"
    try:
        bus = await Bus.connect(server.url, "told", "control", "control-1", folder, create=True)
        for place, (seconds, event) in enumerate(told):
            commit = Commit(
                run="told",
                producer=Producer(service="control", instance="control-1"),
                commit=f"c{place}",
                causation=0,
                as_of=0,
                correlation="told",
                time=BEGIN + round(seconds * 1e9),
                events=(event,),
            )
            await bus.ev.append(subjects.ev("told", "control", "run"), commit)
        await bus.close()
        await export_run(server.url, "told", folder, path)
    finally:
        server.stop()
    return path
