"""Rank 0 of a group: the core's process sends a weights file to a server's ranks by torch.distributed.

Each server that asks gets a group of its own, with a store at a port of its own and a thread that sends: one that is
slow, late or dead costs nobody else anything, and its thread ends at a time limit. The file's bytes are sent as they
lie, in broadcasts of bounded size; nothing is taken from a trainer, which may be at its next step by then.
"""

import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed import distributed_c10d

from gyre.engines.sglang.group import Bucket, Group
from gyre.weights.layout import Part, read_layout
from gyre.weights.port import WeightsUnusable

SEND_SECONDS = 60.0
"""For the ranks to come, and for each broadcast."""
BUCKET_BYTES = 1 << 28
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""Safetensors' names -> torch's."""
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
        WeightsUnusable: the file is none, or of a kind that no group carries.
        OSError: nothing can listen at that address.
    """
    ranges = tuple(_ranges(read_layout(file).parts))
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    limit = timedelta(seconds=SEND_SECONDS)
    store = _distributed.TCPStore(
        host, port, 1 + ranks, True, limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    group = Group(name=name, address=host, port=port, backend=backend, buckets=tuple(_bucket(each) for each in ranges))
    spans = [(parts[0].begin, parts[-1].end) for parts in ranges]
    thread = Thread(target=_serve, args=(store, group, ranks, file, spans), name=f"send-{name}", daemon=True)
    thread.start()
    return Sender(group, thread)


def _ranges(parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    """Neighbours of one kind, so that each lies where its kind may begin, up to a broadcast's size."""
    found: list[Part] = []
    for part in parts:
        if part.kind not in DTYPES:
            raise WeightsUnusable(
                f"weights: {part.name!r} is {part.kind}, which no group carries; use another transport"
            )
        if found and (part.kind != found[0].kind or part.end - found[0].begin > BUCKET_BYTES):
            yield tuple(found)
            found = []
        found.append(part)
    if found:
        yield tuple(found)


def _bucket(parts: tuple[Part, ...]) -> Bucket:
    return Bucket(
        names=tuple(each.name for each in parts),
        dtypes=tuple(DTYPES[each.kind] for each in parts),
        shapes=tuple(each.shape for each in parts),
    )


def _serve(store: Any, group: Group, ranks: int, file: Path, spans: Sequence[tuple[int, int]]) -> None:
    """The thread: whatever goes wrong shows at the server, which falls back on the file."""
    try:
        made = _form(store, group, 1 + ranks)
        try:
            for begin, end in spans:
                _broadcast(made, _bytes(file, begin, end, group.backend))
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


def _bytes(file: Path, begin: int, end: int, backend: str) -> torch.Tensor:
    """(bytes,) uint8, where the backend sends from."""
    flat = torch.from_numpy(np.fromfile(file, dtype=np.uint8, count=end - begin, offset=begin))
    return flat.cuda() if backend == "nccl" else flat
