"""The engines' contract on a real SGLang server of a mixture of experts, and which experts it tells."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gyre.engines.port import EngineFailed, GenerateRequest
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.experts import Shape, rows_of
from gyre.engines.sglang.server import RunningServer
from tests.backends.conftest import managed, serving
from tests.backends.mixtures import chosen, make_mixture, save, told
from tests.engines import test_contract as contract
from tests.engines.test_contract import PROMPT, ask, generator, served, until_running  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(300)
OTHERWISE = {
    "test_the_same_seed_draws_the_same_tokens": "SGLang's deterministic sampling has no attention backend on the CPU",
    "test_weights_that_do_not_fit_change_nothing": "of the torch engine; SGLang's own is tested with the Llama",
}
globals().update({name: each for name, each in vars(contract).items() if name.startswith("test_")})
for name, reason in OTHERWISE.items():
    globals()[name] = pytest.mark.skip(reason=reason)(globals()[name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_mixture(0), tmp_path_factory.mktemp("models") / "mixture")


@pytest.fixture(scope="module")
def mixture(folder: Path) -> Iterator[RunningServer]:
    with serving(managed(folder, "--enable-return-routed-experts")) as running:
        yield running


@pytest.fixture
def llama() -> Callable[..., Any]:
    """What the contract's tests make weights with."""
    return make_mixture


@pytest.fixture
async def engine(mixture: RunningServer, folder: Path) -> AsyncIterator[SglangEngine]:
    made = SglangEngine(mixture, folder, instance="contract", experts=True)
    await made.resume(make_mixture(0).state_dict(), 0)
    yield made
    await made.close()


def telling(request: GenerateRequest, first: int = 0) -> GenerateRequest:
    return replace(request, experts_from=first)


async def test_log_probabilities_are_those_of_the_model(
    engine: SglangEngine, full_logprobs: Callable[..., Any]
) -> None:
    found = await engine.generate(ask("a", max_tokens=60, temperature=0.7))
    wanted = full_logprobs(make_mixture(0), PROMPT, found, 0.7)
    assert max(abs(a - b) for a, b in zip(found.logprobs, wanted.tolist(), strict=True)) < 1e-4
    assert found.routed_experts is None  # nobody asked


async def test_the_experts_told_are_those_that_the_models_routers_choose(engine: SglangEngine) -> None:
    found = await engine.generate(telling(ask("a", max_tokens=40, temperature=1.0)))
    assert (told(found) == chosen(make_mixture(0), PROMPT, found)).all()


async def test_over_http_they_come_the_same(engine: SglangEngine) -> None:
    async with served(engine) as remote:
        found = await remote.generate(telling(ask("a", max_tokens=20)))
    assert (told(found) == chosen(make_mixture(0), PROMPT, found)).all()


async def test_a_call_that_extends_another_tells_of_its_own_tokens_also_where_the_rest_is_cached(
    engine: SglangEngine,
) -> None:
    first = await engine.generate(ask("a", max_tokens=20))
    longer = (*PROMPT, *first.output_ids, 7, 8)
    own = len(longer) - 3  # the position before the first token that is new
    found = await engine.generate(telling(ask("b", longer, max_tokens=10), own))
    assert found.cached_tokens >= own
    assert (told(found) == chosen(make_mixture(0), longer, found)[own:]).all()
    again = await engine.generate(telling(ask("c", longer, max_tokens=10)))
    assert again.cached_tokens > own
    assert (told(again) == chosen(make_mixture(0), longer, again)).all()  # cached ones have been kept


async def test_new_weights_under_way_leave_each_token_the_experts_of_the_pass_that_drew_it(
    engine: SglangEngine,
) -> None:
    pending = asyncio.ensure_future(engine.generate(telling(ask("a", max_tokens=1200, temperature=1.0))))
    await until_running(engine, 1)
    await asyncio.sleep(0.3)
    await engine.load(make_mixture(1).state_dict(), 1)
    found = await pending
    assert [each.version for each in found.versions] == [0, 1]
    seam = len(PROMPT) + found.versions[0].tokens - 1
    taken = told(found)
    assert len(taken) == len(PROMPT) + 1200 - 1
    for model, part in ((make_mixture(0), slice(0, seam)), (make_mixture(1), slice(seam, None))):
        same = (taken[part] == chosen(model, PROMPT, found)[part]).all((1, 2))
        assert same.mean() > 0.99  # of a thousand choices one may hang on the last digit


async def test_what_was_ended_before_its_first_token_tells_nothing(engine: SglangEngine) -> None:
    pending = asyncio.ensure_future(engine.generate(telling(ask("a", max_tokens=1000))))
    await until_running(engine, 1)
    await engine.abort("a")
    found = await pending
    assert (found.routed_experts is None) == (not found.output_ids)
    if found.output_ids:
        assert len(told(found)) == len(PROMPT) + len(found.output_ids) - 1


async def test_a_server_that_cannot_tell_is_noticed_when_it_is_taken(server: RunningServer, folder: Path) -> None:
    """The other tests' Llama was started without it."""
    made = SglangEngine(server, folder, instance="silent", experts=True)
    with pytest.raises(EngineFailed, match=r"--enable-return-routed-experts, or set trainer\.routing_replay = false"):
        await made.resume(make_mixture(0).state_dict(), 0)
    await made.close()


def test_rows_of_a_prefix_from_elsewhere_are_unknown_and_others_are_checked() -> None:
    import base64

    sent = np.arange(4 * 2 * 3, dtype="<i4")
    answer = base64.b64encode(sent.tobytes()).decode()
    rows = np.frombuffer(rows_of(answer, Shape(2, 3), range(10, 14), 12), "<i2").reshape(4, 6)
    assert rows[:2].tolist() == [[-1] * 6] * 2
    assert rows[2:].tolist() == sent.reshape(4, 6)[2:].tolist()
    assert rows_of(answer, Shape(2, 3), range(10, 14), 3) == sent.astype("<i2").tobytes()
    with pytest.raises(EngineFailed, match="--enable-return-routed-experts"):
        rows_of(None, Shape(2, 3), range(4), 0)
    with pytest.raises(EngineFailed, match="24 experts of 5 positions"):
        rows_of(answer, Shape(2, 3), range(5), 0)
