"""The sum of the members' gradients, over gloo, as ReductionOpened froze them (design §8).

A communication group belongs to a membership (cells and instances) and an epoch. It is formed once, through a file in
the run folder, and used again in later steps; a failure drops it, and the next epoch forms another. All members read
the same event, so they all reuse or all form.
"""

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor, distributed, tensor

from gyre.trainers.port import FencedOut, LedgerBroken, ReductionFailed
from schemas.training import ReductionOpened

_Gloo: Any = distributed.ProcessGroupGloo  # the part used here is published without types


class Reducer:
    """One cell's door to the reductions of its run. Calls block, without the interpreter lock: use a thread.

    Args:
        folder: the run folder, which every member sees.
        cell: this cell's index.
        instance: this process; after a restart it is another one and forms new groups.
        timeout_seconds: how long to wait for the members to come, and then for the sum.
        host: address that this process listens on and its peers can reach.
    """

    def __init__(self, folder: Path, cell: int, instance: str, timeout_seconds: float, host: str = "127.0.0.1") -> None:
        self._folder = folder / "reduction"
        self._me = (cell, instance)
        self._timeout = timedelta(seconds=timeout_seconds)
        self._host = host
        self._groups: dict[tuple[int, ...], tuple[int, tuple[str, ...], Any]] = {}  # members: epoch, instances, group

    def sum(self, opened: ReductionOpened, gradient: Tensor) -> Tensor:
        """Sum over the members of `opened`; each of them must call this, and each gets the same tensor.

        Args:
            opened: whom to wait for.
            gradient: (P,) this member's accumulator. It is copied and stays as it is, whatever happens.
        Returns:
            (P,) of the same type, a new tensor.
        Raises:
            FencedOut: this process is not a member.
            ReductionFailed: a member did not come or was lost on the way; names step, epoch and members.
        """
        total = gradient.clone()
        self.add_up(opened, total)
        return total

    def add_up(self, opened: ReductionOpened, total: Tensor) -> None:
        """The same in place: `total` is this member's gradient before, and the sum after. Raises as `sum` does."""
        members = tuple(zip(opened.members, opened.instances, strict=True))
        if self._me not in members:
            where = f"step {opened.step} epoch {opened.epoch}"
            raise FencedOut(f"{where}: cell {self._me[0]} as {self._me[1]} is not among the members {opened.members}")
        if len(members) > 1:
            self._all_reduce(opened, members.index(self._me), total)

    def close(self) -> None:
        """Leave all groups; peers that still wait for this member fail at once."""
        self._groups.clear()

    def _all_reduce(self, opened: ReductionOpened, rank: int, total: Tensor) -> None:
        epoch, instances, group = self._groups.pop(opened.members, (0, (), None))
        try:
            if (epoch, instances) != (opened.epoch, opened.instances):
                group = self._form(opened, rank)
            group.allreduce([total]).wait()
        except RuntimeError as error:  # what torch raises for a lost peer as well as for a time limit
            where = f"step {opened.step} epoch {opened.epoch}, members {opened.members}"
            reason = str(error).splitlines()[0][:200]
            raise ReductionFailed(f"{where}: {reason}; open it again under epoch {opened.epoch + 1}") from error
        self._groups[opened.members] = (opened.epoch, opened.instances, group)

    def _form(self, opened: ReductionOpened, rank: int) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        instances = hashlib.sha256(repr((opened.members, opened.instances)).encode()).hexdigest()[:12]
        meeting = self._folder / f"{opened.step}-{opened.epoch}-{instances}"
        store = distributed.FileStore(str(meeting), len(opened.members))  # type: ignore[attr-defined]
        store.set_timeout(self._timeout)
        options = _Gloo._Options()  # noqa: SLF001 - the only way to choose the address
        options._timeout = self._timeout  # noqa: SLF001
        options._devices = [_Gloo.create_device(hostname=self._host)]  # noqa: SLF001
        return _Gloo(store, rank, len(opened.members), options)


def checked_sum(reducer: Reducer, opened: ReductionOpened, gradient: Tensor, held: Mapping[int, int]) -> Tensor:
    """The members' gradients summed, once what they hold is found to be what was frozen, each once (design §8).

    Before the gradients, the members sum their accounts: for each contribution whether the accumulator holds it, under
    the claim named, and in one more place how much else it holds.

    Args:
        reducer: this member's.
        opened: what was frozen.
        gradient: (P,) this member's accumulator.
        held: micro-step -> claim of what is in that.
    Returns:
        (P,), the same at every member.
    Raises:
        LedgerBroken: at every member; names step, epoch and the first difference.
        FencedOut, ReductionFailed: see `Reducer.sum`.
    """
    total = gradient.clone()  # of the moment of the account: a cell that gave up on this sum may accumulate on
    mine = [float(held.get(each.micro_step) == each.claim) for each in opened.contributions]
    *counts, more = (int(each) for each in reducer.sum(opened, tensor([*mine, len(held) - sum(mine)])).tolist())
    where = f"step {opened.step} epoch {opened.epoch}"
    for each, count in zip(opened.contributions, counts, strict=True):
        if count != 1:
            raise LedgerBroken(f"{where}: micro-step {each.micro_step} is in the members' gradients {count} times")
    if more:
        raise LedgerBroken(f"{where}: the members' gradients hold {more} micro-steps that the reduction does not name")
    reducer.add_up(opened, total)
    return total
