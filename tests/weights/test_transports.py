"""Every transport of files brings what was published, whatever was lost on the way: one contract for all."""

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gyre.engines.port import EngineUnavailable
from gyre.engines.scripted import ScriptedEngine, replay
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from gyre.errors import GyreError
from gyre.models.load import NANO
from gyre.trainers.port import WeightsRefused
from gyre.weights.files import Carried, Carrier, FromFolder, Shared
from gyre.weights.group import Grouped
from gyre.weights.http_store import TOKEN, Bearer, HttpStore
from gyre.weights.port import Weights, WeightsUnavailable, WeightsUnusable
from gyre.weights.s3 import s3_store
from gyre.weights.store import ObjectStore, Stored
from schemas.refs import WeightsRef
from services.weights import NamedBlobs
from tests.weights.files import saved
from tests.weights.s3_server import Bucket


class Reading(ScriptedEngine):
    """An engine that only keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(replay(()))
        self.given: list[tuple[str, int, bytes]] = []

    async def load(self, weights: Any, version: int) -> None:
        self.given.append(("load", version, weights.read_bytes()))

    async def resume(self, weights: Any, version: int) -> None:
        self.given.append(("resume", version, weights.read_bytes()))


@dataclass
class Run:
    """A core with its folder, and a cell whose run folder is another one, which it may see or not."""

    folder: Path
    core: Weights
    cell: Weights
    own: Path
    """The cell's files."""
    engine: Reading

    async def publish(self, chance: int, base: WeightsRef | None = None) -> tuple[WeightsRef, int]:
        """New weights: a few values differ from those of the chance before. The reference, and what was sent."""
        values = np.arange(4000, dtype="<f4")
        values[:: 100 - chance] += chance
        made = saved({"a": ("F32", (4000,), values.tobytes())}, self.folder)
        return made, (await self.core.offer(made, base)).sent

    async def brought(self, weights: WeightsRef, version: int) -> None:
        await self.cell.bring(self.engine, weights, version, resume=version == 0)
        how, at, body = self.engine.given[-1]
        assert (how, at) == ("resume" if version == 0 else "load", version)
        assert body == (self.folder / weights.address).read_bytes()


async def _objects(app: web.Application, token: str) -> web.Application:
    bodies: dict[str, bytes] = {}

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=403)
        name = request.match_info["name"]
        if request.method == "PUT":
            bodies[name] = await request.read()
        elif name not in bodies:
            return web.Response(status=404)
        elif request.method == "DELETE":
            del bodies[name]
        return web.Response(body=bodies.get(name, b""))

    app.add_routes([web.route(method, "/bucket/{name}", answer) for method in ("PUT", "GET", "DELETE")])
    return app


def now() -> datetime:
    return datetime.now(UTC)


KINDS = ("file", "file+delta", "store", "store+delta", "http", "http+delta", "s3", "s3+delta")


@pytest.fixture(params=KINDS)
async def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    kind, _, delta = request.param.partition("+")
    folder, own = tmp_path / "run", tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv(TOKEN, "secret")
    plain = await _objects(web.Application(client_max_size=1 << 20), "secret")
    server = TestServer(Bucket("secret").app() if kind == "s3" else plain)
    await server.start_server()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": str(server.make_url(""))}
    stores: dict[str, Callable[[], ObjectStore]] = {
        "store": lambda: NamedBlobs(tmp_path / "objects"),
        "http": lambda: HttpStore(str(server.make_url("/bucket/")), Bearer()),
        "s3": lambda: s3_store("s3://bucket/run", keys, now),
    }

    def carrier() -> Carrier:
        return Shared(folder) if kind == "file" else Stored(stores[kind]())

    def side(seen: Path, *, core: bool) -> Weights:
        if request.param == "file":
            return FromFolder(folder)
        return Carried(carrier(), seen, own, delta=bool(delta), core=core)

    made = Run(folder, side(folder, core=True), side(tmp_path / "unseen", core=False), own, Reading())
    yield made
    await made.core.close()
    await made.cell.close()
    await server.close()


async def test_a_cell_is_brought_each_version_in_turn(run: Run) -> None:
    before = None
    for version in range(4):
        weights, sent = await run.publish(version, before)
        await run.brought(weights, version)
        assert sent <= weights.size
        before = weights


async def test_a_version_that_did_not_change_is_brought_too(run: Run) -> None:
    weights, _ = await run.publish(0)
    await run.brought(weights, 0)
    await run.core.offer(weights, weights)
    await run.brought(weights, 1)


async def test_a_cell_that_missed_versions_gets_the_last_whole(run: Run) -> None:
    first, _ = await run.publish(0)
    await run.brought(first, 0)
    second, _ = await run.publish(1, first)
    third, _ = await run.publish(2, second)
    await run.brought(third, 1)


async def test_what_was_offered_twice_by_two_cores_is_one(run: Run) -> None:
    first, _ = await run.publish(0)
    await run.brought(first, 0)
    second, sent = await run.publish(1, first)
    assert (await run.core.offer(second, first)).sent == sent
    await run.brought(second, 1)


async def test_weights_that_were_never_published_are_brought_nowhere(run: Run) -> None:
    with pytest.raises((GyreError, OSError)):
        await run.cell.bring(run.engine, WeightsRef(digest="0" * 64, size=1, address="weights/x"), 0, resume=True)
    assert run.engine.given == []


@pytest.mark.parametrize("run", ["store", "http", "s3"], indirect=True)
async def test_a_carrier_that_is_away_says_nothing_about_the_weights(run: Run) -> None:
    """This host does not see the run folder: that the file is missing here is no word about it."""
    weights, _ = await run.publish(0)
    assert isinstance(run.core, Carried)
    await run.core._carrier.keep(())
    with pytest.raises((GyreError, OSError)) as away:
        await run.cell.bring(run.engine, weights, 0, resume=True)
    assert not isinstance(away.value, WeightsRefused)
    await run.core.offer(weights, None)
    await run.brought(weights, 0)


@pytest.mark.parametrize("run", ["file", "file+delta"], indirect=True)
async def test_what_a_run_folder_that_all_see_has_not_will_never_come(run: Run) -> None:
    with pytest.raises(WeightsRefused):
        await run.cell.bring(run.engine, WeightsRef(digest="0" * 64, size=1, address="weights/x"), 0, resume=True)


@pytest.mark.parametrize("run", ["store", "http", "s3"], indirect=True)
async def test_a_damaged_file_of_a_run_folder_that_is_seen_is_refused(run: Run) -> None:
    weights, _ = await run.publish(0)
    assert isinstance(run.core, Carried)
    await run.core._carrier.keep(())
    (run.folder / weights.address).write_bytes(b"another")
    seeing = Carried(Stored(NamedBlobs(run.own)), run.folder, run.own, delta=False, core=False)
    with pytest.raises(WeightsRefused, match="damaged"):
        await seeing.bring(run.engine, weights, 0, resume=True)


async def test_no_transport_but_these_is_asked_anything(run: Run) -> None:
    with pytest.raises(WeightsUnusable, match="must have the same"):
        await run.core.answer(b"{}")


async def test_only_the_last_file_stays_with_the_cell(run: Run) -> None:
    first, _ = await run.publish(0)
    await run.brought(first, 0)
    second, _ = await run.publish(1, first)
    await run.brought(second, 1)
    assert [each.name for each in run.own.glob("*")] in ([], [f"{second.digest}.safetensors"])


deltas_only = pytest.mark.parametrize("run", [each for each in KINDS if each.endswith("delta")], indirect=True)


@deltas_only
async def test_what_changed_is_all_that_is_sent(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    first, whole = await run.publish(0)
    await run.brought(first, 0)
    assert whole == first.size
    with caplog.at_level(logging.WARNING, "gyre"):
        second, sent = await run.publish(1, first)
        assert sent < second.size / 10
        (run.folder / second.address).rename(run.folder / "aside")  # it comes from nowhere else
        for name in (second.address.removeprefix("weights/"),):
            if isinstance(run.cell, Carried) and isinstance(run.cell._carrier, Stored):
                await run.cell._carrier._store.remove(name)
        await run.cell.bring(run.engine, second, 1, resume=False)
    assert run.engine.given[-1][2] == (run.folder / "aside").read_bytes()
    assert caplog.text == ""


@deltas_only
async def test_a_cell_of_another_base_or_a_damaged_one_gets_the_whole_file(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = await run.publish(0)
    await run.brought(first, 0)
    (run.own / f"{first.digest}.safetensors").unlink()
    (run.own / f"{first.digest}.safetensors").write_bytes(b"another")
    second, _ = await run.publish(1, first)
    with caplog.at_level(logging.WARNING, "gyre"):
        await run.brought(second, 1)
    assert "the delta is of" in caplog.text


@deltas_only
async def test_a_torn_delta_costs_a_whole_file_and_is_made_anew_by_the_next_core(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = await run.publish(0)
    await run.brought(first, 0)
    second, sent = await run.publish(1, first)
    (delta,) = (run.folder / "deltas").iterdir()
    delta.write_bytes(delta.read_bytes()[:20])
    run.core = side = Carried(run.core._carrier, run.folder, run.own, delta=True, core=True)  # type: ignore[attr-defined]
    assert (await side.offer(second, first)).sent == sent
    with caplog.at_level(logging.WARNING, "gyre"):
        await run.brought(second, 1)


@deltas_only
async def test_a_base_that_the_core_lost_is_done_without(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    first, _ = await run.publish(0)
    await run.brought(first, 0)
    (run.folder / first.address).unlink()
    with caplog.at_level(logging.WARNING, "gyre"):
        second, sent = await run.publish(1, first)
    assert sent == second.size
    assert "no delta" in caplog.text
    await run.brought(second, 1)


@pytest.mark.parametrize("run", ["store", "http", "s3"], indirect=True)
async def test_a_store_keeps_two_versions_at_most(run: Run, tmp_path: Path) -> None:
    before = None
    for version in range(4):
        weights, _ = await run.publish(version, before)
        before = weights
    assert isinstance(run.core, Carried)
    assert isinstance(run.core._carrier, Stored)
    assert len(run.core._carrier._names) == 2
    if (tmp_path / "objects").exists():
        assert len([each for each in (tmp_path / "objects").rglob("*") if each.is_file()]) == 4


@pytest.mark.parametrize("run", ["store", "http", "s3"], indirect=True)
async def test_a_store_that_lost_it_is_done_without_where_the_run_folder_is_seen(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    weights, _ = await run.publish(0)
    assert isinstance(run.core, Carried)
    await run.core._carrier.keep(())
    seeing = Carried(Stored(NamedBlobs(run.own)), run.folder, run.own, delta=False, core=False)
    with caplog.at_level(logging.WARNING, "gyre"):
        await seeing.bring(run.engine, weights, 0, resume=True)
    assert "from the run folder" in caplog.text
    assert run.engine.given[-1][2] == (run.folder / weights.address).read_bytes()


async def test_a_store_that_refuses_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = TestServer(await _objects(web.Application(), "secret"))
    await server.start_server()
    monkeypatch.setenv(TOKEN, "wrong")
    store = HttpStore(str(server.make_url("/bucket")), Bearer())
    (tmp_path / "file").write_bytes(b"x")
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: store.put("name", tmp_path / "file"),
        lambda: store.fetch("name", tmp_path / "into"),
        lambda: store.remove("name"),
    )
    for attempt in attempts:
        with pytest.raises(WeightsUnavailable, match="answered 403 Forbidden"):
            await attempt()
    await server.close()
    with pytest.raises(WeightsUnavailable, match="Connect"):
        await store.fetch("name", tmp_path / "into")
    await store.close()


async def test_a_group_that_does_not_come_about_says_nothing_about_the_weights(tmp_path: Path) -> None:
    """Its server is away, and this host does not see the run folder."""
    weights = saved({"a": ("F32", (1,), bytes(4))}, tmp_path / "run")

    async def nobody(_: bytes) -> bytes:
        raise WeightsUnavailable("no core is known yet")

    engine = SglangEngine(RunningServer("http://127.0.0.1:9"), NANO)
    cell = Grouped(tmp_path / "unseen", "cell", nobody, "127.0.0.1", "gloo")
    with pytest.raises(EngineUnavailable):
        await cell.bring(engine, weights, 0, resume=True)
    await engine.close()
