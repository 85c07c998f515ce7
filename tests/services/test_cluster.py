"""Three NATS servers that hold each stream three times, configured by `gyre keys`: one of them may be lost."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
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
    ports: dict[str, tuple[int, int, int]]
    """Of each server: for clients, for the others, for those who look."""
    stack: ExitStack
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    def write_keys(self, renew: bool = False) -> None:
        write_keys(self.keys, "demo", renew, [f"{HOST}:{route}" for _, route, _ in self.ports.values()])

    def start(self, name: str) -> None:
        place = server(name, self.keys / "nats/nats.conf", self.ports[name], self.folder)
        self.processes[name] = self.stack.enter_context(place)

    async def healthy(self, name: str) -> None:
        """Wait until a server says what its start is probed for: in the cluster, with what the others have."""
        async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientConnectionError):
                    async with session.get(f"http://{HOST}:{self.ports[name][2]}/healthz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.2)

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
    text = config.read_text().replace("store_dir: /data", f"store_dir: {folder / name}")
    own.write_text(text.replace("port: 6222", f'listen: "{HOST}:{route}"'))
    arguments = ["-c", str(own), "-a", HOST, "-p", str(client), "-m", str(monitor)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [binary(), *arguments],
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
    with ExitStack() as stack:
        made = Cluster(f"nats://{HOST}:{ports['nats-0'][0]}", tmp_path, ports, stack)
        made.write_keys()
        (tmp_path / "users").mkdir()
        for user in ("provisioner", "scheduler"):
            login = {"user": user, "password": (made.keys / user / "GYRE_NATS_PASSWORD").read_text()}
            (tmp_path / "users" / f"{user}.json").write_text(json.dumps(login))
        for name in ports:
            made.start(name)
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


async def test_a_server_with_new_passwords_joins_those_that_have_the_old_ones_still(cluster: Cluster) -> None:
    await (await cluster.bus(THRICE)).close()
    cluster.write_keys(renew=True)
    for name in ("nats-2", "nats-1"):  # as they are replaced: one by one, each only when the last one is well
        cluster.processes[name].kill()
        cluster.processes[name].wait()
        cluster.start(name)
        await cluster.healthy(name)
