"""What a core publishes, and what a server then computes with."""

from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from gyre.engines.port import Generation
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.torch import file_state
from schemas.refs import WeightsRef
from tests.engines.conftest import make_llama
from tests.engines.test_contract import ask

Save = Callable[[int], WeightsRef]


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """The tiny Llama of a seed, as a core saves it in the run folder."""
    return lambda seed: save_tensors(file_state(make_llama(seed))[0], tmp_path, "weights")


def saved_path(folder: Path, reference: WeightsRef) -> Path:
    return folder / reference.address


async def checksum(server: RunningServer) -> str:
    """Of all weights that the server computes with."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/weights_checker", json={"action": "checksum"}) as found,
    ):
        answer = await found.json()
    return str(answer["per_engine_checksum"]) if answer.get("per_engine_checksum") else str(answer["ranks"])


async def beside(engine: SglangEngine) -> None:
    """A short request from its beginning to its end: those that ran before it have gone on by a token at least."""
    await engine.generate(ask("beside", max_tokens=3))


def versions(found: Generation) -> list[int]:
    return [each.version for each in found.versions]
