"""A cell that changes its role, and what becomes of those whom it serves: each case on a bus in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bus.streams import Limits
from gyre.config import Config
from gyre.core.routes import LEFT, LOST
from gyre.engines.port import EngineFailed
from gyre.engines.remote import RemoteEngine
from gyre.engines.scripted import ScriptedEngine
from schemas.calls import (
    KvHandoffCompleted,
    ModelCallContinued,
    ModelCallRetried,
    RequestCancelled,
    RouteAssigned,
    RouteMoved,
)
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from services.exits import Hopeless
from services.proxy.world import World
from tests.proxy.rig import MODEL, RUN, SECRET, SYSTEM, TASK, Cell, Client
from tests.services.agents import Crew, Holding

TO_TRAIN = ["stop", "reroute", "pin", "cancel", "handoff", "offload", "restore"]
TO_ROLLOUT = ["offload", "restore", "admit"]
SAID = "up up up up up up"


@pytest.fixture
async def crew(tmp_path: Path) -> Crew:
    made = Crew(tmp_path, config=Config.of({"cells": {"heartbeat_seconds": 5.0}}))
    made.broker.provision(RUN, Limits())
    (tmp_path / "proxy.key").write_bytes(SECRET)
    await made.begin()
    return made


@pytest.fixture
async def pair(crew: Crew) -> AsyncIterator[tuple[Cell, Cell]]:
    """Cells 0 and 1 at work; a lone execution begins at 1."""
    cells = Cell([" later", "more"]), Cell([SAID, "and on"])
    async with AsyncExitStack() as stack:
        for index, cell in enumerate(cells):
            await stack.enter_async_context(crew.agent(index, cell.engine))
        yield cells


async def cut(crew: Crew, client: Client, cell: Cell, index: int) -> dict[str, Any]:
    """The answer to a call that its cell lets go of after two tokens."""
    cell.open.clear()
    asking = asyncio.create_task(client.reply(await crew.launch(), [SYSTEM, TASK]))
    await cell.spoke.wait()
    assert isinstance(await crew.ask("t1", index, "train"), RoleTransitionCompleted)
    return await asking


async def test_a_cell_leaves_and_comes_back_phase_by_phase(crew: Crew) -> None:
    trainer = Holding()
    async with crew.agent(0, Cell([]).engine, trainer):
        await crew.ask("t1", 0, "train")
        assert trainer.holds
        await crew.ask("t2", 0, "rollout")
        assert not trainer.holds
    assert [[each.phase for each in await crew.phases(name)] for name in ("t1", "t2")] == [TO_TRAIN, TO_ROLLOUT]
    assert all(each.resident_bytes > 0 for each in await crew.phases("t1"))


async def test_a_cut_request_goes_on_with_its_cache_inside_the_same_exchange(
    crew: Crew, pair: tuple[Cell, Cell]
) -> None:
    async with crew.proxy() as client:
        reply = await cut(crew, client, pair[1], 1)
    (record,) = await crew.records()
    prompt = len(record.input_ids) // 4
    assert reply["content"] == MODEL.decode(MODEL.encode(SAID)[:2]) + " later"
    assert record.cells == (1, 0)
    assert [(each.from_cell, each.to_cell, each.reason) for each in await crew.said(RouteMoved)] == [(1, 0, LEFT)]
    assert [(each.cell, each.reason) for each in await crew.said(RequestCancelled)] == [(1, LEFT)]
    assert [(each.from_cell, each.kept_tokens) for each in await crew.said(ModelCallRetried)] == [(1, 2)]
    assert [each.requests for each in await crew.phases("t1") if each.phase == "cancel"] == [1]
    assert [(each.from_cell, each.to_cell, each.tokens) for each in await crew.said(KvHandoffCompleted)] == [
        (1, 0, prompt + 2)
    ]
    (continued,) = await crew.said(ModelCallContinued)
    assert (continued.from_cell, continued.to_cell) == (1, 0)
    assert (continued.context_tokens, continued.cached_tokens) == (prompt + 2, prompt + 1)


async def test_what_an_execution_had_cached_follows_it_between_its_calls(crew: Crew, pair: tuple[Cell, Cell]) -> None:
    token = await crew.launch()
    async with crew.proxy() as client:
        first = await client.reply(token, [SYSTEM, TASK])
        await crew.ask("t1", 1, "train")
        handed = await crew.heard(KvHandoffCompleted)
        await client.reply(token, [SYSTEM, TASK, first, {"role": "user", "content": "on"}])
    records = await crew.records()
    assert [record.cells for record in records] == [(1,), (0,)]
    assert records[1].cached_tokens == handed.tokens
    assert [each.seconds < 2 for each in await crew.phases("t1") if each.phase == "handoff"] == [True]
    assert await crew.said(ModelCallRetried) == []


async def test_without_time_for_a_handoff_everything_is_computed_again(tmp_path: Path) -> None:
    crew = Crew(tmp_path, config=Config.of({"cells": {"handoff_seconds": 0}}), handoff=0.0)
    crew.broker.provision(RUN, Limits())
    (tmp_path / "proxy.key").write_bytes(SECRET)
    await crew.begin()
    one = Cell([SAID])
    async with crew.agent(0, Cell([" later"]).engine), crew.agent(1, one.engine), crew.proxy() as client:
        await cut(crew, client, one, 1)
    assert [each.cached_tokens for each in await crew.said(ModelCallContinued)] == [0]
    assert await crew.said(KvHandoffCompleted) == []


async def test_a_cache_that_does_not_come_is_waited_for_no_longer_than_the_limit(tmp_path: Path) -> None:
    crew = Crew(tmp_path, config=Config.of({"cells": {"handoff_seconds": 0.2}}), handoff=0.2)
    crew.broker.provision(RUN, Limits())
    (tmp_path / "proxy.key").write_bytes(SECRET)
    await crew.begin()

    class Deaf(ScriptedEngine):
        """It never hears of a cache."""

        async def take_kv(self, key: str, source: str) -> int:
            await asyncio.Event().wait()
            return 0

    one = Cell([SAID])
    deaf = Deaf(Cell([" later"])._line)
    async with crew.agent(0, deaf), crew.agent(1, one.engine), crew.proxy() as client:
        reply = await cut(crew, client, one, 1)
    assert reply["content"].endswith(" later")
    assert await crew.said(KvHandoffCompleted) == []


async def test_routes_move_off_a_lost_cell_though_nobody_calls(crew: Crew) -> None:
    for index in range(2):
        await crew.register(index, Cell([]))
    await crew.launch()
    await crew.say("proxy", ("execution", "x1"), RouteAssigned(execution="x1", cell=1))
    async with crew.proxy():
        await crew.say("scheduler", ("cell", "1"), CellLost(cell=1, instance="i1", reason="silent"))
        moved = await crew.heard(RouteMoved)
    assert (moved.from_cell, moved.to_cell, moved.reason) == (1, 0, LOST)


async def test_a_proxy_that_comes_late_moves_what_an_earlier_one_left(crew: Crew) -> None:
    for index in range(2):
        await crew.register(index, Cell([]))
    await crew.launch()
    await crew.say("proxy", ("execution", "x1"), RouteAssigned(execution="x1", cell=1))
    leaving = RoleTransitionRequested(transition="t1", cell=1, instance="i1", to="train")
    await crew.say("scheduler", ("cell", "1"), leaving)
    async with crew.proxy():
        moved = await crew.heard(RouteMoved)
    assert (moved.to_cell, moved.reason) == (0, LEFT)
    assert len(await crew.said(RouteMoved)) == 1


class Stuck(ScriptedEngine):
    """An engine that keeps its memory while it is told to fail."""

    failing = False

    async def release(self) -> None:
        if self.failing:
            raise EngineFailed("memory is held elsewhere")
        await super().release()


async def test_a_cell_that_cannot_offload_serves_on_and_says_so(crew: Crew) -> None:
    engine = Stuck(Cell(["one"])._line)
    async with crew.agent(0, engine), crew.proxy() as client:
        engine.failing = True
        failed = await crew.ask("t1", 0, "train")
        assert isinstance(failed, RoleTransitionFailed)
        assert (failed.phase, failed.reason) == ("offload", "EngineFailed: memory is held elsewhere")
        assert (await client.reply(await crew.launch(), [SYSTEM, TASK]))["content"] == "one"


class Halfway(ScriptedEngine):
    """An engine that lets go of everything, and then cannot tell."""

    failing = False

    async def release(self) -> None:
        await super().release()
        if self.failing:
            raise EngineFailed("no answer")


async def test_a_cell_whose_engine_failed_to_let_go_and_is_down_gives_it_weights_before_it_admits(crew: Crew) -> None:
    engine = Halfway(Cell(["one"])._line)
    async with crew.agent(0, engine), crew.proxy() as client:
        engine.failing = True
        failed = await crew.ask("t1", 0, "train")
        assert isinstance(failed, RoleTransitionFailed)
        assert failed.phase == "offload"
        assert (await client.reply(await crew.launch(), [SYSTEM, TASK]))["content"] == "one"


async def test_a_request_cut_by_a_transition_that_failed_is_answered_where_it_was(crew: Crew) -> None:
    cell = Cell([SAID, " later"])
    trainer = Holding()
    trainer.broken = True
    async with crew.agent(0, cell.engine, trainer), crew.proxy() as client:
        cell.open.clear()
        asking = asyncio.create_task(client.reply(await crew.launch(), [SYSTEM, TASK]))
        await cell.spoke.wait()
        failed = await crew.ask("t1", 0, "train")
        cell.open.set()
        assert isinstance(failed, RoleTransitionFailed)
        assert (failed.phase, failed.reason) == ("restore", "OSError: the weights cannot be read")
        assert (await asking)["content"].endswith("later")


class Late(ScriptedEngine):
    """An engine that refuses its weights once it is told to, after it has taken memory for them."""

    refusals = 0
    holds = False

    async def release(self) -> None:
        await super().release()
        self.holds = False

    async def resume(self, weights: Any, version: int) -> None:
        self.holds = True
        if self.refusals:
            self.refusals -= 1
            raise EngineFailed("no memory yet")
        await super().resume(weights, version)


class Clinging(Holding):
    """A trainer that loses its weights and fails, so many times."""

    failures = 0

    def release(self) -> None:
        super().release()
        if self.failures:
            self.failures -= 1
            raise OSError("a rank does not answer")


async def test_a_cell_that_cannot_serve_again_keeps_its_training_state(crew: Crew) -> None:
    engine, trainer = Late(Cell(["one"])._line), Holding()
    async with crew.agent(0, engine, trainer), crew.proxy() as client:
        await crew.ask("t1", 0, "train")
        engine.refusals = 1
        failed = await crew.ask("t2", 0, "rollout")
        assert isinstance(failed, RoleTransitionFailed)
        assert failed.phase == "restore"
        assert (trainer.holds, engine.holds) == (True, False)
        assert isinstance(await crew.ask("t3", 0, "rollout"), RoleTransitionCompleted)
        assert (await client.reply(await crew.launch(), [SYSTEM, TASK]))["content"] == "one"


async def test_a_trainer_that_broke_while_it_let_go_is_given_its_weights_again(crew: Crew) -> None:
    engine, trainer = Cell(["one"]).engine, Clinging()
    async with crew.agent(0, engine, trainer):
        await crew.ask("t1", 0, "train")
        trainer.failures = 1
        failed = await crew.ask("t2", 0, "rollout")
        assert isinstance(failed, RoleTransitionFailed)
        assert failed.phase == "offload"
        assert trainer.holds


async def test_a_cell_that_can_take_neither_role_ends_and_is_lost(crew: Crew) -> None:
    engine, trainer = Late(Cell([])._line), Holding()
    trainer.broken = True
    async with crew.agent(0, engine, trainer) as running:
        engine.refusals = 2
        await crew.request("t1", 0, "train")
        with pytest.raises(EngineFailed, match="no memory yet"):
            await running


async def test_weights_that_cannot_be_read_end_a_cell_that_is_to_train_and_nothing_is_tried_again(crew: Crew) -> None:
    async with crew.agent(0, Cell([]).engine) as running:
        (weights,) = (crew.folder / "weights").iterdir()
        weights.unlink()
        await crew.request("t1", 0, "train")
        with pytest.raises(Hopeless, match=rf"^cell 0: {weights}: missing; restore it from a copy"):
            await running
    assert await crew.said(RoleTransitionFailed) == []


async def test_weights_that_cannot_be_read_end_a_cell_that_is_to_serve(crew: Crew) -> None:
    async with crew.agent(0, Cell([]).engine) as running:
        await crew.ask("t1", 0, "train")
        (weights,) = (crew.folder / "weights").iterdir()
        weights.write_bytes(b"WEIGHTS")
        await crew.request("t2", 0, "rollout")
        with pytest.raises(Hopeless, match="the file is damaged"):
            await running
    assert await crew.said(RoleTransitionFailed) == []


def fixed_split(folder: Path) -> Crew:
    """Two cells, of which cell 0 trains for good."""
    cells = {"cells": {"count": 2, "trainers": 1}, "schedule": {"kind": "async", "mu": 1, "phi": 1}}
    crew = Crew(folder, config=Config.of(cells))
    crew.broker.provision(RUN, Limits())
    (folder / "proxy.key").write_bytes(SECRET)
    return crew


async def test_a_cell_that_trains_for_good_serves_nobody_before_it_is_asked_to_train(tmp_path: Path) -> None:
    crew, trainer = fixed_split(tmp_path), Holding()
    await crew.begin()
    async with crew.agent(0, Cell([]).engine, trainer):
        where = await crew.heard(CellRegistered)
        async with RemoteEngine(where.url) as engine:
            assert not (await engine.health()).admitting
        assert isinstance(await crew.ask("t1", 0, "train"), RoleTransitionCompleted)
        assert trainer.holds
    assert [each.phase for each in await crew.phases("t1")] == ["restore"]


async def test_nobody_is_routed_to_a_cell_that_trains_for_good_whichever_instance_it_is(tmp_path: Path) -> None:
    crew = fixed_split(tmp_path)
    await crew.begin()
    world = World(crew.bus("proxy"), SECRET, 0, trainers=1)
    await crew.register(0, Cell([]))
    await crew.launch()
    following = asyncio.create_task(world.follow())
    await world.caught_up()
    waiting = asyncio.create_task(world.cell_for("x1", set()))
    await asyncio.sleep(0)
    assert not waiting.done()
    await crew.register(1, Cell([]))
    assert (await waiting)[0] == 1
    following.cancel()
