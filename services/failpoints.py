"""Named points at which a process kills itself, to see what a crash right there leaves behind.

`GYRE_FAILPOINTS` names some of them, separated by commas; without it nothing happens. Each fires once a run: whoever
comes to it first leaves a mark in the run folder, so that its next instance goes on, and sends itself SIGKILL.
"""

import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from gyre.errors import GyreError
from schemas.dispatch import ExecutionDispatched
from schemas.envelope import Event
from schemas.training import GradientReduced, MicroStepClaimed, MicroStepCompleted, OptimizerStepped

VARIABLE = "GYRE_FAILPOINTS"
Failpoint = Literal["half_dispatched", "claimed", "completed", "reduced", "stepped", "committed", "half_published"]
"""In the order in which a batch comes by. stepped: new weights are durable, and the log does not say so. committed: it
says so, and nobody is told to load them. half_published: one engine serves them, and the log does not say so."""

_AFTER: Mapping[type[Event], Failpoint] = {
    ExecutionDispatched: "half_dispatched",
    MicroStepClaimed: "claimed",
    MicroStepCompleted: "completed",
    GradientReduced: "reduced",
    OptimizerStepped: "committed",
}


class UnknownFailpoint(GyreError):
    """The environment names a point that there is none of."""


def armed() -> frozenset[str]:
    """What the environment names. Raises `UnknownFailpoint`."""
    names = frozenset(each.strip() for each in os.environ.get(VARIABLE, "").split(",") if each.strip())
    if unknown := sorted(names - set(get_args(Failpoint))):
        raise UnknownFailpoint(f"{VARIABLE} = {unknown[0]}: no such point; there are {', '.join(get_args(Failpoint))}")
    return names


def said(folder: Path, events: Iterable[Event]) -> None:
    """A commit with these events is durable."""
    for event in events:
        if (name := _AFTER.get(type(event))) is not None:
            reach(folder, name)


def reach(folder: Path, name: Failpoint) -> None:
    """End here, if this point is armed and has not fired in this run."""
    if name in armed() and _first(marks(folder) / name):
        os.kill(os.getpid(), signal.SIGKILL)


def marks(folder: Path) -> Path:
    """Where a run's points leave their marks, a file each."""
    return folder / "failpoints"


def _first(mark: Path) -> bool:
    mark.parent.mkdir(exist_ok=True)
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
