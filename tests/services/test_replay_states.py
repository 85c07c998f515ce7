"""`gyre replay RUN --to MOMENT --state NAME`: any state as of any moment, from an archive and from a server."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bus.archive import import_run
from bus.server import NatsServer
from schemas.training import OptimizerStepped
from services.minds import minds
from services.moments import MomentUnknown, sequence_at, written
from services.office import snapshot_file
from services.place import Note
from services.reading import heard
from services.source import Source, open_source
from services.states import STATES, fold_of, state_at
from tests.services.conftest import Gyre, refusal
from tests.services.recorded import SMALL


@pytest.fixture
async def small() -> AsyncIterator[Source]:
    async with open_source(str(SMALL), Path()) as source:
        yield source


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded run as a folder at rest."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small").mkdir()
    server = NatsServer(folder / "small" / "nats").start()
    try:
        asyncio.run(import_run(server.url, SMALL, folder / "small"))
        Note("small", server.url, "always").write(folder / "small")
    finally:
        server.stop()
    return folder


async def test_moments_are_sequences_updates_and_times(small: Source) -> None:
    first = await small.ev.get(1)
    assert first is not None
    assert first.commit is not None
    begun = first.commit.time
    stepped = await sequence_at(small, "step:2")
    found = await small.ev.get(stepped)
    assert found is not None
    assert found.commit is not None
    assert isinstance(found.commit.events[0], OptimizerStepped)
    since = (found.commit.time - begun) / 1e6
    assert await sequence_at(small, "17") == 17
    assert await sequence_at(small, f"+{since + 0.01:.3f}ms") >= stepped
    assert await sequence_at(small, f"+{since - 1:.3f}ms") < stepped
    assert await sequence_at(small, "+9h") == await small.ev.head()
    assert await sequence_at(small, "+0s") == 1
    assert await sequence_at(small, written(begun + 2 * 10**6)) == 1
    naive = written(begun + 5 * 10**9).removesuffix("Z")
    assert await sequence_at(small, naive) == await sequence_at(small, f"{naive}+00:00")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("banana", r"give a sequence \(500\)"),
        ("0", "the log holds 1 to"),
        ("99999", "the log holds 1 to"),
        ("step:9", "step:1 to step:4"),
        ("step:x", "step:1 to step:4"),
        ("2020-01-01", "the run began later"),
        ("+5", "give a sequence"),
    ],
)
async def test_a_moment_that_is_none_is_refused(small: Source, text: str, words: str) -> None:
    with pytest.raises(MomentUnknown, match=words):
        await sequence_at(small, text)


async def test_counters_agree_with_the_events_up_to_any_moment(small: Source) -> None:
    for moment in ("step:1", "+5.5s", "700"):
        until = await sequence_at(small, moment)
        found = await state_at(small, "counters", until)
        said: dict[str, int] = {}
        async for stored in heard(small.ev, until=until):
            for event in stored.commit.events if stored.commit else ():
                said[event.type] = said.get(event.type, 0) + 1
        assert found["dispatched"] == said.get("ExecutionDispatched", 0)
        assert found["launched"] == said.get("ExecutionLaunched", 0)
        assert found["terminated"] == said.get("ExecutionTerminated", 0)
        assert found["waterlevel"] == found["dispatched"] - found["terminated"]
        assert found["steps"] == said.get("OptimizerStepped", 0)


async def test_waterlevel_and_roles_are_those_of_the_moment(small: Source) -> None:
    before = await sequence_at(small, "step:1") - 1
    assert await state_at(small, "roles", before) == {0: "train", 1: "rollout", 2: "rollout"}
    level = await state_at(small, "waterlevel", before)
    assert (level["waterlevel"], level["capacity"], level["next_cell"]) == (0, 12, 1)
    assert (level["waterlevel_allows"], level["training_open"]) == (True, True)


async def test_groups_batches_and_ledger_follow_a_step(small: Source) -> None:
    until = await sequence_at(small, "step:1")
    groups = await state_at(small, "groups", until)
    assert [name for name, group in groups.items() if group["standing"] == "trained"] == ["g0", "g1", "g2", "g3"]
    assert {each["standing"] for each in groups["g0"]["executions"].values()} == {"valid"}
    batch = (await state_at(small, "batches", until))[1]
    assert (batch["groups"], batch["enqueued"], batch["completed"], batch["members"]) == (
        ["g0", "g1", "g2", "g3"],
        4,
        4,
        [0],
    )
    assert (await state_at(small, "ledger", until))["step"] == 2
    assert len((await state_at(small, "ledger", until - 2))["slots"]) == 4


async def test_every_state_can_be_seen_at_the_beginning_and_at_the_end(small: Source) -> None:
    for name in STATES:
        for until in (1, None):
            json.dumps(await state_at(small, name, until), default=sorted)


async def test_a_run_at_rest_gives_what_its_archive_gives(small: Source, runs: Path) -> None:
    until = await sequence_at(small, "step:2")
    async with open_source("small", runs) as source:
        assert await sequence_at(source, "step:2") == until
        assert await sequence_at(source, "+6.5s") == await sequence_at(small, "+6.5s")
        for name in ("scheduler", "packer", "groups", "timeline"):
            assert await state_at(source, name, until) == await state_at(small, name, until)


async def test_a_snapshot_that_is_early_enough_is_where_folding_begins(runs: Path) -> None:
    async with open_source("small", runs) as source:
        mind = minds(await source.started(), source.ev, source.blobs)["scheduler"]
        assert source.folder is not None
        kept = snapshot_file(source.folder, source.run, mind)
        plain = await state_at(source, "counters", 400)
        kept.save(replace(mind.initial, version=77), 390)
        try:
            assert (await fold_of(source, "counters")).start(389)[1] == 0
            assert (await state_at(source, "counters", 400))["published"] == 77
            assert await state_at(source, "counters", 389) != {}
        finally:
            kept.delete()
        assert await state_at(source, "counters", 400) == plain


def test_the_command_takes_a_moment_and_a_name(gyre: Gyre) -> None:
    found = json.loads(gyre("replay", SMALL, "--to", "step:4", "--state", "counters", "--json").stdout)
    assert (found["steps"], found["dispatched"]) == (4, 64)
    indented = gyre("replay", SMALL, "--to", "step:4", "--state", "counters").stdout
    assert json.loads(indented) == found
    assert indented.startswith('{\n "')


def test_wrong_names_and_moments_are_one_line(gyre: Gyre) -> None:
    line = refusal(gyre("replay", SMALL, "--state", "mood"), code=2)
    assert all(name in line for name in STATES)
    assert "step:1 to step:4" in refusal(gyre("replay", SMALL, "--to", "step:5"))
    assert "read the whole log" in refusal(gyre("replay", SMALL, "--why", "1", "--to", "5"), code=2)
    assert "one of --step, --why and --verify" in refusal(gyre("replay", SMALL, "--verify", "--why", "1"), code=2)
