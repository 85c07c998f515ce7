"""A cell that dies while it hands over: `python -m tests.backends.dying_cell URL MODEL FILE BUCKETS`.

Ends itself without a word once its server has so many buckets and was sent part of the next.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.engines.sglang import tensors
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from gyre.weights.tensors import give_tensors


async def main(url: str, model: Path, file: Path, buckets: int) -> None:
    left = iter(range(buckets))

    class Dying(Client):
        async def load_tensors(self, body: Mapping[str, Any]) -> None:
            if next(left, None) is None:
                asyncio.get_running_loop().call_later(0, os._exit, 1)
                await self._change("/update_weights_from_tensor", {**body, "weight_version": "lost"})
            await super().load_tensors(body)

    tensors.BUCKET_BYTES = 8000
    engine = SglangEngine(RunningServer(url), model, instance="dying")
    engine._client = Dying(url)
    await give_tensors(engine, file, 1, resume=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
