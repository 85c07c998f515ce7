"""What a real server's memory is after a cell that was killed: the next one finds it, and no more is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from tests.engines.test_contract import ask

pytestmark = pytest.mark.timeout(300)


async def test_a_server_that_was_left_released_serves_the_next_cell(
    server: RunningServer, model_folder: Path, llama: Callable[..., Any]
) -> None:
    killed, heir = (SglangEngine(server, model_folder, instance=name) for name in ("killed", "heir"))
    await killed.resume(llama(0).state_dict(), 0)
    before = await killed.generate(ask("a"))
    await killed.release()
    await killed._client.close()  # it says nothing more
    await heir.resume(llama(0).state_dict(), 1)
    after = await heir.generate(ask("b"))
    assert (after.output_ids, after.versions[0].version) == (before.output_ids, 1)
    await heir.release()
    await heir.release()
    await heir.close()  # whoever else uses it finds it as it was
