"""Three NATS servers that hold each stream three times, configured by `gyre keys`: one of them may be lost."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bus import streams, subjects
from bus.errors import BusError
from bus.jetstream import Bus
from bus.ports import lasting_port
from bus.server import binary
from bus.streams import Limits
from schemas.envelope import Commit, Producer
from schemas.runs import TimerFired
from services.keys import write_keys

HOST = "127.0.0.1"
THRICE = Limits(ev_bytes=1 << 20, call_bytes=1 << 20, replicas=3)
PATIENCE_SECONDS = 60.0


@dataclass
class Cluster:
    """The servers, by name, and how services come to them."""

    url: str
    folder: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    async def bus(self, limits: Limits | None = None) -> Bus:
        """A connection; one that makes the streams waits until the servers have found each other."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await Bus.connect(
                        self.url,
                        "demo",
                        "scheduler",
                        "one",
                        self.folder,
                        limits is not None,
                        limits=limits,
                        patience_seconds=40.0,
                    )
                except BusError:
                    await asyncio.sleep(0.2)


def distinct_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(lasting_port(HOST))
    return list(found)


@contextmanager
def server(name: str, config: Path, ports: tuple[int, int, int], folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    client, route, monitor = ports
    own = folder / f"{name}.conf"
    own.write_text(config.read_text().replace("store_dir: /data", f"store_dir: {folder / name}"))
    arguments = ["-c", str(own), "-a", HOST, "-p", str(client), "-m", str(monitor)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [binary(), *arguments, "--cluster", f"nats://{HOST}:{route}"],
            env={**os.environ, "NATS_NAME": name},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    drawn = distinct_ports(9)
    ports = {f"nats-{number}": (drawn[number], drawn[3 + number], drawn[6 + number]) for number in range(3)}
    keys = tmp_path / "keys"
    write_keys(keys, "demo", servers=[f"{HOST}:{route}" for _, route, _ in ports.values()])
    (tmp_path / "users").mkdir()
    for user in ("provisioner", "scheduler"):
        login = {"user": user, "password": (keys / user / "GYRE_NATS_PASSWORD").read_text()}
        (tmp_path / "users" / f"{user}.json").write_text(json.dumps(login))
    made = Cluster(f"nats://{HOST}:{ports['nats-0'][0]}", tmp_path)
    with ExitStack() as stack:
        for name, pair in ports.items():
            made.processes[name] = stack.enter_context(server(name, keys / "nats/nats.conf", pair, tmp_path))
        yield made


def fired(number: int) -> Commit:
    return Commit(
        run="demo",
        producer=Producer(service="scheduler", instance="one"),
        commit=f"c{number}",
        causation=0,
        as_of=0,
        correlation="demo",
        time=number,
        events=(TimerFired(timer=f"t{number}"),),
    )


async def info(bus: Bus, stream: str) -> dict[str, Any]:
    return await bus._link.api(f"STREAM.INFO.{stream}")


async def test_a_log_that_three_servers_hold_outlives_one_of_them(cluster: Cluster) -> None:
    bus = await cluster.bus(THRICE)
    subject = subjects.ev("demo", "scheduler", "timer", "t")
    await bus.ev.append(subject, fired(1))
    found = await info(bus, streams.ev_stream("demo"))
    assert found["config"]["num_replicas"] == 3
    cluster.processes[found["cluster"]["leader"]].kill()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await bus.ev.append(subject, fired(2))
    last = await bus.ev.last(subject)
    assert last is not None
    assert last.sequence == 2
    await bus.close()


async def test_a_run_that_is_opened_again_keeps_its_copies(cluster: Cluster) -> None:
    await (await cluster.bus(THRICE)).close()
    bus = await cluster.bus(Limits(ev_bytes=2 << 20, call_bytes=1 << 20))
    names = (streams.ev_stream("demo"), streams.call_stream("demo"))
    kept = [(await info(bus, name))["config"] for name in names]
    assert [each["num_replicas"] for each in kept] == [3, 3]
    assert kept[0]["max_bytes"] == 2 << 20
    await bus.close()
