"""Optimizer state in megatron-core's distributed format: every rank writes and reads its own part. Imports megatron.

The moments lie in it under Megatron's own keys and global shapes (`optimizer.state.exp_avg.<parameter>`), so that ranks
laid out otherwise find theirs, and Megatron's tools can read them. A rank writes its file itself: Megatron's way, by
forked processes and a manager of theirs, would leave some behind when a rank is killed.
"""

import queue
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_finalize
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException

from gyre.trainers.manifest import Written, written
from gyre.trainers.port import TrainerError, WeightsRefused

_KEYS = {"first": "optimizer.state.exp_avg", "second": "optimizer.state.exp_avg_sq"}
_ITERATION, _SEQUENCE = "iteration", "log_sequence"

# Where written buckets are told of; by default the first save starts a process for it.
filesystem_async._results_queue = queue.Queue()  # noqa: SLF001


class WriteFailed(TrainerError):
    """Another rank could not write its part; that one says why."""


def write(model: Any, state: Mapping[str, Tensor], folder: Path, sequence: int) -> dict[str, Written]:
    """Write this rank's part of the optimizer state; all ranks call this together.

    Args:
        model: this rank's.
        state: as `gyre.trainers.optimizer.Adam.state` gives it, of this rank's parameters.
        folder: empty, the same for all ranks.
        sequence: position in the run's log, which is kept with it.
    Returns:
        The files that this rank wrote; they are on disk.
    Raises:
        OSError: the disk is full or not writable.
        WriteFailed: at another rank.
    """
    updates = int(state["updates"])
    strategy = _Own()
    try:
        dist_checkpointing.save(
            {**_sharded(model, state), _ITERATION: updates, _SEQUENCE: sequence}, str(folder), strategy
        )
    except CheckpointException as error:
        raise (strategy.failure or WriteFailed(f"{folder}: a rank could not write: {error}")) from error
    return written(folder, sorted(each.name for each in folder.iterdir() if _wrote(each.name)))


def read(model: Any, state: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """This rank's part of an optimizer state, whatever ranks wrote it; all ranks call this together.

    Args:
        model: this rank's.
        state: tensors like those wanted; they stay as they are.
        folder: of the checkpoint, whose files were checked.
    Raises:
        WeightsRefused: it belongs to another model.
    """
    like = {name: each.new_empty(each.shape) for name, each in state.items()}
    try:
        found = dist_checkpointing.load(_sharded(model, like), str(folder))
    except (CheckpointException, CheckpointingException) as error:
        raise WeightsRefused(f"{folder}: belongs to another model: {str(error)[:300]}") from error
    taken = {f"{which}.{name}": each for which in _KEYS for name, each in found[which].items()}
    return taken | {"updates": state["updates"].new_tensor(found[_ITERATION])}


def _sharded(model: Any, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The moments, each placed as the parameter that it is of."""
    places = model.sharded_state_dict()
    return {
        which: {
            name: make_sharded_optimizer_tensor(_sole(places[name]), state[f"{which}.{name}"], key)
            for name, _ in model.named_parameters()
            if f"{which}.{name}" in state
        }
        for which, key in _KEYS.items()
    }


def _sole(place: Any) -> Any:
    """Of ranks that take different rows one alone has these moments: whichever it is, it is the one to write them."""
    return replace(place, replica_id=(*place.replica_id[:-1], 0))


def _wrote(name: str) -> bool:
    """Whether this rank did: its own parts, the first rank also what is common."""
    rank = distributed.get_rank()
    return name.startswith(f"__{rank}_") or (rank == 0 and not name.startswith("__"))


class _Own(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron's format, written by this process, one file a rank."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1, thread_count=1)
        self.failure: OSError | None = None

    def _get_save_and_finalize_callbacks(self, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
        return AsyncRequest(lambda: self._write(writer), (), [lambda: save_state_dict_async_finalize(*planned)])

    def _write(self, writer: FileSystemWriterAsync) -> None:
        if writer.results_queue is None:  # nothing of it is this rank's to write
            return
        results: queue.Queue[tuple[int, Any]] = queue.Queue()
        buckets = FileSystemWriterAsync.preload_tensors(writer.write_buckets, non_blocking=False)
        for index, bucket in enumerate(buckets):
            done: queue.Queue[int] = queue.Queue()
            done.put(index)
            FileSystemWriterAsync.write_preloaded_data(
                [writer.transforms], index, bucket, results, done, use_fsync=True
            )
        found = dict(results.get() for _ in buckets)
        failures = [each for each in found.values() if isinstance(each, Exception)]
        self.failure = next((each for each in failures if isinstance(each, OSError)), None)
        writer.results_queue.put(failures[0] if failures else found)
