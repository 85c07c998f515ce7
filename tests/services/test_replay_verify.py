"""`gyre replay --verify` finds what a log must not hold, whoever said it, and says where: it never breaks on it."""

import base64
import gc
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bus.log import ReadLog, Stored
from schemas.rewards import TreeBuilt
from services.reading import heard
from services.replay import verify
from services.source import open_source
from services.views.tree_view import tree_of
from tests.services.recorded import RUNS, SMALL
from tests.services.tampered import Change, Message, event, first, tampered

BABBLE = RUNS / "babble.jsonl.zst"
"""The smallest of them that has every step of an update, though nothing to learn from."""


def set_to(kind: str, place: int = 0, **fields: Any) -> Change:
    return lambda ev, _: event(ev, kind, place).update(fields)


def twice(kind: str) -> Change:
    return lambda ev, _: ev.append(ev[first(ev, kind)])


def without_a_share(ev: list[Message], _: list[Message]) -> None:
    event(ev, "ReductionOpened")["contributions"].pop()


def with_a_share_twice(ev: list[Message], _: list[Message]) -> None:
    shares = event(ev, "ReductionOpened")["contributions"]
    shares.append(shares[0])


def under_another_claim(ev: list[Message], _: list[Message]) -> None:
    event(ev, "ReductionOpened")["contributions"][0]["claim"] += 1


def without_its_reduction(ev: list[Message], _: list[Message]) -> None:
    commit = ev[first(ev, "GradientReduced")][1]
    commit["events"] = [each for each in commit["events"] if each["type"] != "GradientReduced"]


def of_another_run(ev: list[Message], _: list[Message]) -> None:
    ev[first(ev, "GroupAssigned")][1]["run"] = "another"


def in_anothers_place(ev: list[Message], _: list[Message]) -> None:
    """A cell that assigns a group: it stands on the cell's own subject, in the cell's own name."""
    ev[first(ev, "CellJoined")][1]["events"] = [event(ev, "GroupAssigned")]


def behind_an_observation(ev: list[Message], _: list[Message]) -> None:
    """A decision that does not follow, behind what its shell saw."""
    seen = {"type": "TimerFired", "v": 1, "timer": "none"}
    ev[first(ev, "LaunchGranted")][1]["events"] = [seen, event(ev, "LaunchGranted", 1)]


def of_nothing(ev: list[Message], _: list[Message]) -> None:
    """Malformed, so that what it should have said is missing from then on."""
    ev[first(ev, "LaunchGranted")][1]["events"] = []


def cut(ev: list[Message], _: list[Message]) -> None:
    """Ids that are no whole number of tokens: packing cannot read them."""
    trajectory = event(ev, "TrajectoriesAdmitted")["trajectories"][0]
    trajectory["ids"] = base64.urlsafe_b64encode(b"abcde").decode()


def of_an_unknown_call(ev: list[Message], _: list[Message]) -> None:
    event(ev, "TreeBuilt")["leaves"][0]["leaf"] = "nobody"


def without_its_body(ev: list[Message], _: list[Message]) -> None:
    event(ev, "TreeBuilt")["body"]["digest"] = "0" * 64


def with_another_reply(ev: list[Message], calls: list[Message]) -> None:
    """What a tree does not hold is sealed all the same; held-out executions are not."""
    sealed = event(ev, "RecordsSealed")["execution"]
    next(each["events"][0] for _, each in calls if each["events"][0]["execution"] == sealed)["reply"] = "[]"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (twice("ExecutionLaunched"), "launched a second time"),
        (twice("ExecutionTerminated"), "ended a second time"),
        (set_to("ExecutionLaunched", execution="x9-9"), "x9-9: launched, and never dispatched"),
        (twice("RewardAssigned"), "rewarded a second time"),
        (set_to("RewardAssigned", reward=0.123), "reward 0.123, but its designated assessment gave"),
        (set_to("RewardAssigned", placeholder=True, reward=1.0), "reward 1, but a placeholder's is 0"),
        (set_to("AssessmentRecorded", score=7.0), "scores 7, outside"),
        (set_to("AssessmentRecorded", valid=False), "valid exactly when it has a score"),
        (without_its_reduction, "an update without a reduction"),
        (set_to("GradientReduced", members=[0, 1, 2, 3]), "not of the members and claims that were frozen"),
        (set_to("GradientReduced", gradient_norm=99.0), "its gradient norm is"),
        (set_to("OptimizerStepped", loss=1e300), "its loss is 1e+300"),
        (set_to("OptimizerStepped", version=7), "step 1: makes version 7 after 0 updates"),
        (set_to("OptimizerStepped", 1, step=3), "step 3: makes version 2 after 1 updates"),
        (set_to("RecordsSealed", digest="0" * 64), "CALL holds others than those"),
        (set_to("RecordsSealed", count=77), "others than those 77 sealed ones"),
        (with_another_reply, "CALL holds others than those"),
        (set_to("TreeBuilt", nodes=77), "and another body than was recorded"),
        (of_another_run, "nothing was due"),
        (behind_an_observation, "recorded TimerFired, LaunchGranted"),
        (of_nothing, "decided LaunchGranted, recorded LaunchGranted"),
        (in_anothers_place, "(cell): GroupAssigned is not for this service to say"),
        (of_an_unknown_call, "no decision (call nobody is not in the tree"),
        (without_its_body, "no decision (blob 0000"),
    ],
)
async def test_what_a_log_must_not_hold_is_a_difference(tmp_path: Path, change: Change, words: str) -> None:
    async with tampered(BABBLE, tmp_path, change) as source:
        assert words in "\n".join((await verify(source)).differences)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_a_share, "is missing from the sum"),
        (with_a_share_twice, "is in the sum 2 times"),
        (under_another_claim, "under a claim that was never completed"),
        (cut, "no decision (buffer size"),
    ],
)
async def test_an_update_is_of_its_batchs_micro_steps_each_once(tmp_path: Path, change: Change, words: str) -> None:
    async with tampered(SMALL, tmp_path, change) as source:
        assert words in "\n".join((await verify(source)).differences)


async def test_a_tree_is_drawn_with_its_own_leaves_where_the_recorded_ones_are_none_of_it(tmp_path: Path) -> None:
    async with tampered(BABBLE, tmp_path, of_an_unknown_call) as source:
        built = [
            each
            async for stored in heard(source.ev)
            for each in (stored.commit.events if stored.commit else ())
            if isinstance(each, TreeBuilt)
        ]
        found = await tree_of(source, built[0].execution)
    assert found["leaves"]
    assert {each["id"] for each in found["leaves"]} <= {each["call"] for each in found["nodes"]}


@dataclass(frozen=True)
class Counting:
    """A log that counts at its last message of how many executions the calls are still held."""

    log: ReadLog
    held: list[int] = field(default_factory=list)

    async def head(self) -> int:
        return await self.log.head()

    async def read(self, after: int = 0, *filters: str) -> AsyncGenerator[Stored, None]:
        head = await self.head()
        async for stored in self.log.read(after, *filters):
            if stored.sequence == head:
                self.held.append(sum(type(each).__name__ == "_Called" for each in gc.get_objects()))
            yield stored


async def test_an_executions_calls_are_let_go_where_its_seal_ends(tmp_path: Path) -> None:
    async with open_source(str(SMALL), tmp_path) as source:
        calls: Any = Counting(source.calls)
        verdict = await verify(replace(source, calls=calls))
    assert (verdict.differences, verdict.trees > 20) == ([], True)
    assert calls.held[0] <= 2


@pytest.mark.parametrize("name", ["small", "dying-cell", "crashing-tests"])
async def test_recorded_runs_hold_nothing_of_the_kind(tmp_path: Path, name: str) -> None:
    """Whatever went wrong in them."""
    async with open_source(str(RUNS / f"{name}.jsonl.zst"), tmp_path) as source:
        assert (await verify(source)).differences == []
