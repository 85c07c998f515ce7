"""What the modelled engine's waiting comes to; its manners are in the contract."""

import asyncio
import time
from pathlib import Path

import pytest

from gyre.engines.modelled import ModelledEngine, Pace
from gyre.engines.port import EngineUnavailable, GenerateRequest, Generation, Sampling, WeightsRefused

WORDS = tuple(range(10, 60))
STOP = 2
PROMPT = (5, 6, 7)


def engine(token_seconds: float = 0.001, **more: float) -> ModelledEngine:
    return ModelledEngine(WORDS, Pace(token_seconds, 0.4, **more), rows=4, context=512)


def ask(name: str, tokens: int, prompt: tuple[int, ...] = PROMPT) -> GenerateRequest:
    return GenerateRequest(name, prompt, Sampling(max_tokens=tokens, seed=11), "x0-0", (STOP,))


async def until_said(engine: ModelledEngine, name: str, tokens: int) -> None:
    flight = engine._flights
    while name not in flight or flight[name].progress(time.monotonic()) < tokens:
        await asyncio.sleep(0)


def test_a_call_takes_less_at_a_cell_with_room_and_more_at_an_overfull_one() -> None:
    pace = Pace(0.1, 0.4)
    assert pace.call_seconds(10, 1.0) == pytest.approx(1.0)
    assert pace.call_seconds(10, 0.25) == pytest.approx(0.7)
    assert pace.call_seconds(10, 0.0) == pytest.approx(0.6)
    assert pace.call_seconds(10, 2.0) == pytest.approx(1.4)


async def test_the_load_counts_those_in_flight_and_the_call_itself() -> None:
    busy = engine(1.0)
    pending = [asyncio.ensure_future(busy.generate(ask(f"r{index}", 10))) for index in range(4)]
    while busy.running < 4:
        await asyncio.sleep(0)
    assert [flight.seconds for flight in busy._flights.values()] == pytest.approx([7.0, 8.0, 9.0, 10.0])
    await busy.abort_all()
    await asyncio.gather(*pending)


async def test_an_answer_has_as_many_tokens_as_it_may_and_the_last_one_ends_it() -> None:
    found = await engine().generate(ask("a", 9))
    assert (len(found.output_ids), found.finish) == (9, "stop")
    assert found.output_ids[-1] == STOP
    assert set(found.output_ids[:-1]) <= set(WORDS)
    assert found.engine_seconds >= 9 * 0.7 * 0.001
    assert found.logprobs[-1] == 0.0
    assert found.logprobs[0] == pytest.approx(-3.912, abs=1e-3)


async def test_an_aborted_call_goes_on_elsewhere_to_the_same_answer_in_the_time_that_was_left() -> None:
    whole = await engine().generate(ask("whole", 60))
    first, second = engine(), engine()
    pending = asyncio.ensure_future(first.generate(ask("a", 60)))
    await until_said(first, "a", 5)
    await first.abort("a")
    part = await pending
    assert part.finish == "abort"
    assert 5 <= len(part.output_ids) < 60
    rest = await second.generate(ask("b", 60 - len(part.output_ids), (*PROMPT, *part.output_ids)))
    assert part.output_ids + rest.output_ids == whole.output_ids
    assert rest.finish == "stop"


async def test_weights_that_come_in_mid_call_leave_a_seam_where_they_came() -> None:
    serving = engine()
    pending = asyncio.ensure_future(serving.generate(ask("a", 100)))
    await until_said(serving, "a", 5)
    await serving.load({}, 1)
    found: Generation = await pending
    assert [span.version for span in found.versions] == [0, 1]
    assert sum(span.tokens for span in found.versions) == 100
    assert found.versions[0].tokens >= 5


async def test_it_does_not_serve_before_its_weights_have_come() -> None:
    away = engine(resume_seconds=0.02)
    await away.release()
    coming = asyncio.ensure_future(away.resume({}, 3))
    await asyncio.sleep(0)
    with pytest.raises(EngineUnavailable, match="released"):
        await away.generate(ask("a", 2))
    await coming
    assert (await away.generate(ask("b", 2))).versions[0].version == 3


async def test_a_file_that_is_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0")
    serving = engine()
    for name in ("torn", "none"):
        with pytest.raises(WeightsRefused, match="cannot be read as safetensors"):
            await serving.load(tmp_path / f"{name}.safetensors", 1)
    assert serving.version == 0
