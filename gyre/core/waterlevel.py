"""When a cell may go to training, and whether the core may stay there: rules over plain numbers (paper §4.2)."""

from dataclasses import dataclass

SUPPLY = "supply-"


@dataclass(frozen=True, slots=True)
class Supply:
    """How long the supply has held: a timer is set when it begins to, and forgotten as soon as it breaks."""

    timer: str = ""
    """The timer that runs or has fired; "": none."""
    fired: bool = False
    timers: int = 0
    """Supply timers set so far, over the whole run."""

    def broken(self) -> "Supply":
        """It does not hold any more, or has to be shown afresh."""
        return Supply(timers=self.timers) if self.timer else self

    def started(self, timer: str) -> "Supply":
        """A TimerSet was said; not ours: no change."""
        return Supply(timer=timer, timers=self.timers + 1) if timer.startswith(SUPPLY) else self

    def rang(self, timer: str) -> "Supply":
        """A TimerFired was said; not the one that counts: no change."""
        return Supply(timer, fired=True, timers=self.timers) if timer and timer == self.timer else self


def supply(ready: int, assigned: int, batch: int, *, core_trains: bool) -> int:
    """Groups that a further cell would find to train on.

    Ready, unassigned groups, capped by what the batch of B still needs. While the core does not train, nobody has
    worked on the groups that the batch already holds: they are supply as well, so that neither an early packer nor
    a core that died in mid-batch can leave the batch waiting for itself.
    """
    waiting = min(ready, batch - assigned)
    return waiting if core_trains else waiting + assigned


def burst_supplied(ready: int, assigned: int, burst: int, *, core_trains: bool) -> bool:
    """Whether all groups are there that a burst without streaming still has to train, and any is left to come for.

    Args:
        ready: groups that are ready and in no batch.
        assigned: groups of the open batch; while the core does not train, nobody has worked on them.
        burst: groups that the burst still has to train, those of the open batch included.
        core_trains: whether the core does.
    """
    waiting = burst - assigned if core_trains else burst
    return 0 < waiting <= (ready if core_trains else ready + assigned)


def may_train(waterlevel: int, capacity: int, leaving: int) -> bool:
    """Whether w <= C_R - C_e: what remains covers all outstanding executions (eq. 5); `leaving` is C_e, or a pool's."""
    return waterlevel <= capacity - leaving


def may_retain(waterlevel: int, pending: int, capacity_without_core: int) -> bool:
    """Whether w + mu N B <= C_s + (K - 1) C_e, w as before dispatch (eq. 6); `pending` is mu N B, trimmed."""
    return waterlevel + pending <= capacity_without_core
