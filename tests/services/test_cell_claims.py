"""What a cell does with entries of the step queue that it cannot read, or work on."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bus import subjects
from bus.codec import CLAIM_CHECK_BYTES
from bus.log import Expect
from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.core.cell import Held, View
from gyre.core.ledger import Ledger, Slot
from schemas.envelope import Event
from schemas.training import MicroStepEnqueued, MicroStepReissued, Row, Segment
from services.cell import claims as cell_claims
from services.cell.claims import Claims
from services.exits import Hopeless
from tests.bus.conftest import said
from tests.trainers import batch


class Desk(SimpleNamespace):
    """Of cell 0, which has joined step 1 and has heard everything."""

    async def heard(self, sequence: int) -> None:
        """All of it."""

    async def say(self, entity: tuple[str | int, ...], *events: Event, expect: Expect) -> int:
        """To nobody."""
        return 1


@pytest.fixture
def bus(tmp_path: Path) -> MemoryBus:
    broker = MemoryBroker()
    broker.provision("r", Limits())
    return MemoryBus(broker, "r", "packer", "one", tmp_path)


def claims(bus: MemoryBus, dropped: list[bool] | None = None, **known: Any) -> Claims:
    """Of a cell whose ledger says this too."""

    async def drop(step: int, why: str, broken: bool) -> None:
        if dropped is None:
            raise AssertionError((step, why))
        dropped.append(broken)

    view = View(steps=3, burst=1, ledger=Ledger(step=1, joined={0: "i0"}, **known))
    held = Held(0, "i0", engine_version=-1, trainer_version=0)
    desk: Any = Desk(bus=bus, view=view, held=held, index=0, place=SimpleNamespace(instance="i0", run="r"))
    return Claims(desk, batch.trainer(), drop)


async def enqueue(bus: MemoryBus, event: Event) -> None:
    await bus.ev.append(subjects.ev("r", "packer", "step", 1, "0"), said(event, service="packer"))


async def test_work_whose_rows_cannot_be_read_is_given_back_and_never_lost(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    await enqueue(bus, MicroStepReissued(step=1, micro_step=0, enqueued=77, reissue=1, reason="lost"))
    with caplog.at_level(logging.WARNING, "gyre"):
        await claims(bus).claim()
    assert [each.message for each in caplog.records] == [
        "work of the queue is given back: sequence 77: it is not there"
    ]
    (again,) = await bus.queue("step").pull(1, 10)
    assert again.attempts == 2


async def lost_rows(bus: MemoryBus) -> str:
    """Micro-step 0 is queued, and the body of its rows is damaged; its digest."""
    large = bytes(CLAIM_CHECK_BYTES)
    segment = Segment(execution="x", leaf="l", ids=large, target=b"", logprobs=b"", advantage=1.0, weight=1.0)
    rows = (Row(segments=(segment,)),)
    await enqueue(bus, MicroStepEnqueued(step=1, micro_step=0, kind="train", rows=rows, tokens=1))
    (blob,) = bus.blobs.digests()
    bus.blobs.path(blob).write_bytes(large)
    return str(blob)


async def test_work_that_nobody_can_ever_read_ends_the_cell_for_good(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_claims, "_UNREADABLE_SECONDS", 0.0)
    blob = await lost_rows(bus)
    mine = claims(bus, total=1)
    for _ in range(cell_claims._UNREADABLE_TRIES - 1):
        await mine.claim()
    with pytest.raises(Hopeless, match=rf"^step 1: a micro-step cannot be read: sequence 1: .*blob {blob}"):
        await mine.claim()
    assert len(await bus.queue("step").pull(1, 10)) == 1


async def test_a_micro_step_that_lost_its_rows_after_it_was_claimed_ends_the_cell_for_good(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_claims, "_UNREADABLE_SECONDS", 0.0)
    await lost_rows(bus)
    (first,) = await bus.queue("step").pull(1, 10)
    await first.ack()
    await enqueue(bus, MicroStepReissued(step=1, micro_step=0, enqueued=1, reissue=1, reason="lost"))
    mine = claims(bus, slots={0: Slot("train", 1, reissues=1)})
    for _ in range(cell_claims._UNREADABLE_TRIES - 1):
        await mine.claim()
    with pytest.raises(Hopeless, match=r"^step 1: a micro-step cannot be read: sequence 1: "):
        await mine.claim()


BUSY = {0: Slot("train", 7, "claimed", cell=1, claim=8)}
"""Another cell is at work on micro-step 0 of two."""


@pytest.mark.parametrize("known", [{}, {"slots": BUSY, "total": 2}], ids=["open", "busy"])
async def test_what_others_may_read_yet_is_given_back_as_often_as_it_comes(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any]
) -> None:
    monkeypatch.setattr(cell_claims, "_UNREADABLE_SECONDS", 0.0)
    await lost_rows(bus)
    mine = claims(bus, **known)
    for _ in range(2 * cell_claims._UNREADABLE_TRIES):
        await mine.claim()
    (again,) = await bus.queue("step").pull(1, 10)
    assert again.attempts == 2 * cell_claims._UNREADABLE_TRIES + 1


async def test_a_message_that_no_model_accepts_is_over_once_the_step_is_whole_without_it(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_claims, "_UNREADABLE_SECONDS", 0.0)
    strange = MicroStepEnqueued(step=1, micro_step=99, kind="train", rows=(), tokens=0)
    await bus.ev.append(subjects.ev("r", "packer", "step", 1, "99"), said(strange, service="cell"))
    mine = claims(bus, slots=BUSY)
    for _ in range(2 * cell_claims._UNREADABLE_TRIES):
        await mine.claim()
    whole: Any = mine._desk.view.ledger
    mine._desk.view = replace(mine._desk.view, ledger=replace(whole, total=1))  # type: ignore[misc]
    await mine.claim()
    assert await bus.queue("step").pull(1, 0) == []


async def test_work_of_another_step_is_over(bus: MemoryBus) -> None:
    await enqueue(bus, MicroStepEnqueued(step=9, micro_step=0, kind="train", rows=(), tokens=0))
    await claims(bus).claim()
    assert await bus.queue("step").pull(1, 0.2) == []


async def test_a_micro_step_that_the_trainer_refuses_is_dropped_as_broken(bus: MemoryBus) -> None:
    await enqueue(bus, MicroStepEnqueued(step=1, micro_step=0, kind="train", rows=(), tokens=0))
    dropped: list[bool] = []
    await claims(bus, dropped).claim()
    assert dropped == [True]
