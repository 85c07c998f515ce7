"""A real SGLang server on the CPU, one for all tests: `make test-backends` has what it needs, `make test` has not."""

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import unused_port

from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import ManagedServer, RunningServer
from tests.backends.published import saved  # noqa: F401 - a fixture
from tests.engines.conftest import full_logprobs, llama, make_llama  # noqa: F401 - fixtures

collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_*.py"]
SHIMS = Path(__file__).parent / "shims"
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(SHIMS), *filter(None, [os.environ.get("PYTHONPATH")])]),
}
ARGUMENTS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--disable-cuda-graph",
    "--dtype=float32",
    "--mem-fraction-static=0.5",
    "--max-total-tokens=16384",
    "--max-running-requests=16",
    "--sleep-on-idle",  # it would keep one of few cores busy
)


def managed(model: Path, *more: str, **environment: str) -> ManagedServer:
    """A server of this model folder, which whoever starts it has to stop."""
    return ManagedServer(
        model,
        unused_port(),
        model.parent / f"{model.name}.log",
        (*ARGUMENTS, *more),
        sys.executable,
        ENVIRONMENT | environment,
    )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama of the engines' contract, as a folder."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    make_llama(0).save_pretrained(folder)
    return folder


@contextmanager
def serving(owner: ManagedServer) -> Iterator[RunningServer]:
    """A managed server from its start to its end, for tests with loops of their own."""
    from gyre.engines.sglang.client import Client

    loop = asyncio.new_event_loop()

    async def start() -> None:
        client = Client(owner.url)
        await owner.start(client)
        await client.close()

    loop.run_until_complete(start())
    yield RunningServer(owner.url)
    loop.run_until_complete(owner.stop())
    loop.close()


@pytest.fixture(scope="session")
def server(model_folder: Path) -> Iterator[RunningServer]:
    """One for the whole session: it takes half a minute to start."""
    with serving(managed(model_folder)) as running:
        yield running


@pytest.fixture
async def engine(server: RunningServer, model_folder: Path, llama: Callable[..., Any]) -> AsyncIterator[SglangEngine]:  # noqa: F811
    """An engine of weights that it knows, as a cell makes it."""
    made = SglangEngine(server, model_folder, instance="contract")
    await made.resume(llama(0).state_dict(), 0)
    yield made
    await made.close()
