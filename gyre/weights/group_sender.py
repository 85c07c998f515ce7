"""Rank 0 of a group: the core's process sends a weights file to a server's ranks by torch.distributed.

Each server that asks gets a group of its own, with a store at a port of its own and a thread that sends: one that is
slow, late or dead costs nobody else anything, and its thread ends at a time limit. The file's bytes are sent as they
lie, in broadcasts of bounded size; nothing is taken from a trainer, which may be at its next step by then.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from gyre.addresses import listener
from gyre.engines.sglang.group import Group
from gyre.weights.buckets import Span, cut
from gyre.weights.layout import read_layout

SEND_SECONDS = 60.0
"""For the ranks to come, and for each broadcast."""
BUCKET_BYTES = 1 << 28
log = logging.getLogger("gyre")
_distributed: Any = distributed  # the parts used here are published without types
_c10d: Any = distributed_c10d


@dataclass(frozen=True, slots=True)
class Sender:
    """One file on its way to one server."""

    group: Group
    """What the server is told."""
    thread: Thread = field(compare=False)


def send(file: Path, name: str, ranks: int, host: str, backend: str) -> Sender:
    """Wait for so many ranks in a thread, and send them the file; the store listens when this returns.

    Args:
        file: weights, safetensors.
        name: of the group; no other has it.
        ranks: of the server.
        host: address of this machine that the server reaches.
        backend: of torch.distributed, gloo or nccl.
    Raises:
        WeightsUnusable: the file is none, or of a kind that SGLang does not receive.
        OSError: nothing can listen at that address.
    """
    spans = cut(read_layout(file).parts, BUCKET_BYTES)
    held = listener(host)
    port = held.getsockname()[1]
    limit = timedelta(seconds=SEND_SECONDS)
    store = _distributed.TCPStore(
        host, port, 1 + ranks, True, limit, wait_for_workers=False, master_listen_fd=held.detach()
    )
    group = Group(name=name, address=host, port=port, backend=backend, buckets=tuple(each.bucket for each in spans))
    thread = Thread(target=_serve, args=(store, group, ranks, file, spans), name=f"send-{name}", daemon=True)
    thread.start()
    return Sender(group, thread)


def _serve(store: Any, group: Group, ranks: int, file: Path, spans: Sequence[Span]) -> None:
    """The thread: whatever goes wrong shows at the server, which falls back on the file."""
    try:
        made = _form(store, group, 1 + ranks)
        try:
            for each in spans:
                flat = each.read(file)
                _broadcast(made, flat.cuda() if group.backend == "nccl" else flat)
        finally:
            _c10d.destroy_process_group(made)
    except (RuntimeError, OSError, ValueError) as error:  # torch has no narrower one for a lost peer or a time limit
        log.warning("group %s: the weights were not sent: %s", group.name, str(error).splitlines()[0][:200])


def _form(store: Any, group: Group, size: int) -> Any:
    """As SGLang's side does it; `init_process_group` would make it this process's only one."""
    inside = _c10d.PrefixStore(group.name, store)
    limit = timedelta(seconds=SEND_SECONDS)
    form = _c10d._new_process_group_helper  # noqa: SLF001 - what SGLang's side calls: both must look for the same keys
    made, _ = form(size, 0, [], _c10d.Backend(group.backend), inside, group_name=group.name, timeout=limit)
    _c10d._world.pg_group_ranks[made] = {rank: rank for rank in range(size)}  # noqa: SLF001 - destroying it looks there
    return made


def _broadcast(made: Any, flat: torch.Tensor) -> None:
    options = _distributed.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    made.broadcast([flat], options).wait()
    if flat.is_cuda:
        torch.cuda.synchronize()  # the wait was the stream's; leaving now would cut it off
