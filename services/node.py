"""A further machine of a cell that spans several: it starts the ranks that the trainer on the first one asks for.

A server that spans the machines too (SGLang's other nodes) runs beside, as a command that is started again when it
ends: its first node ends with the cell, and comes back with it.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gyre.addresses import listener
from gyre.trainers.nodes import KEY, serve_ranks
from services.address import listening

log = logging.getLogger("gyre")
_KEEPER = Path(__file__).parents[1] / "gyre/engines/sglang/keeper.py"
_AGAIN_SECONDS = 1.0


def serve(port: int, command: Sequence[str]) -> None:
    """Serve until SIGTERM; nothing of the command outlives this process. Raises `NodeFailed`, `OSError`."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s node %(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with listener(listening(), port) as held:
        log.info("ranks are started at port %d", held.getsockname()[1])
        if command:
            threading.Thread(target=_keep, args=(command,), daemon=True).start()
        serve_ranks(held, os.environ.get(KEY, ""))


def _keep(command: Sequence[str]) -> None:
    while True:
        keeper = subprocess.Popen([sys.executable, str(_KEEPER), *command], stdin=subprocess.PIPE)
        log.warning("%s ended with %d; starting it again", command[0], keeper.wait())
        time.sleep(_AGAIN_SECONDS)
