"""A core that dies while it sends: `python -m tests.backends.dying_core FILE NAME RANKS BROADCASTS`.

Says its group as JSON, and ends itself without a word after so many broadcasts.
"""

import os
import sys
from pathlib import Path
from typing import Any

from gyre.weights import group_sender


def main(file: Path, name: str, ranks: int, broadcasts: int) -> None:
    whole = group_sender._broadcast
    done = iter(range(broadcasts))

    def broadcast(made: Any, flat: Any) -> None:
        if next(done, None) is None:
            os._exit(1)
        whole(made, flat)

    group_sender._broadcast = broadcast  # type: ignore[assignment]
    group_sender.BUCKET_BYTES = 8000
    sender = group_sender.send(file, name, ranks, "127.0.0.1", "gloo")
    sys.stdout.write(sender.group.model_dump_json() + "\n")
    sys.stdout.flush()
    sender.thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
