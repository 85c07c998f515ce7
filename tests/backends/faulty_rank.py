"""A rank of Megatron in whose backward passes something is amiss with the experts: `GYRE_FAULT` says what."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import distributed

from gyre.trainers.megatron.rank import Rank
from gyre.trainers.megatron.routing import Chosen, Routing, _Replay
from gyre.trainers.ranks import serve

right, again = Routing.again, _Replay._again


def die(*given: Any) -> Any:
    """While a layer is computed again."""
    if distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return again(*given)


@contextmanager
def faulty(routing: Routing, chosen: Sequence[Chosen]) -> Iterator[None]:
    if os.environ["GYRE_FAULT"] == "lost":
        chosen = chosen[:-1]
    elif os.environ["GYRE_FAULT"] == "killed":
        _Replay._again = die  # type: ignore[method-assign, assignment]
    elif os.environ["GYRE_FAULT"] == "shifted":
        chosen = [replace(each, experts=each.experts.roll(1, 0)) for each in chosen]
    else:  # left over
        routing._replays[-1].replay_backward_list = [torch.zeros(1)]
    with right(routing, chosen):
        yield


Routing.again = faulty  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), Rank))
