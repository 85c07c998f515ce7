"""The tables [schedule] and [cells], and which of their values go together (design §6).

A combination that could not be kept, such as a pool that waits for rollouts to drain while dispatch never lets them,
is refused before anything starts.
"""

from math import inf
from typing import Annotated, Self

from pydantic import Field, model_validator

from gyre.config_section import Count, NotNegative, Positive, Section, Whole, refuse
from gyre.core.plan import Dispatching, GroupVersion, Kind, LaunchOrder

ROUNDING = 1e-9  # of products such as phi * B


class ScheduleSection(Section):
    """When executions are dispatched and cells change roles (design §6)."""

    kind: Kind = "elastic"
    """Placement: "elastic" moves cells one by one as the waterlevel falls, "async" splits them for good into trainers
    and engines, "colocate" switches all of them together once what runs outside them is all that is left."""
    stream: bool = True
    """Train on groups as they become ready; false: a burst begins when all of its mu * B groups are ready."""
    dispatch: Dispatching = "boundary"
    """When groups are dispatched: "boundary", mu * B after each publication; "continuous", one as one is ready."""
    group_version: GroupVersion = "burst"
    """Version that a boundary dispatch labels its groups with: "burst", the one published at the end of the burst
    before; "published", the newest when a group is said, as runs recorded before there was a choice have it."""
    launch_order: LaunchOrder = "fifo"
    """Which queued execution is launched first: "fifo", the oldest; "longest_predicted", the one whose task has taken
    longest so far."""
    groups: Count = 4
    """Groups consumed by one optimizer update, B."""
    executions: Annotated[int, Field(ge=2)] = 8
    """Executions in a group, N; one alone has nothing to be compared with."""
    phi: NotNegative = 0.5
    """Groups dispatched ahead of the burst's own, in units of B; phi * B must be whole."""
    mu: Count = 2
    """Optimizer updates between two weight publications (a burst)."""
    rho_min: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.5
    """Share of B that must be ready and unassigned before a cell may go to training, in (0, 1]."""
    tau_seconds: NotNegative = 1.0
    """How long that supply must have held without a break, seconds."""
    oversample: Whole = 0
    """Executions dispatched beyond N in each group; once N are validly scored, those that are left are cancelled."""
    order_seed: Whole | None = None
    """Seed of the order of tasks; unset: the run's seed."""

    @model_validator(mode="after")
    def _groups_ahead_are_whole(self) -> Self:
        extra = self.phi * self.groups
        if extra == inf or abs(extra - round(extra)) > ROUNDING:
            rule = f"phi * groups must be a whole number of groups, found {self.phi} * {self.groups} = {extra:g}"
            raise refuse("schedule.phi", self.phi, rule)
        return self


class CellsSection(Section):
    """The cells that serve rollouts and train."""

    count: Count = 2
    """Elastic cells, K: each can serve rollouts or hold one full training replica."""
    standalone: Whole = 0
    """Engines beside them that never train: cells K, K + 1, ..."""
    trainers: Whole = 0
    """Under schedule.kind "async" alone: how many of the K train for good, the first ones; the others only serve."""
    concurrency: Count = 16
    """Executions that one cell serves at a time, C_e."""
    threads: Count = 1
    """CPU threads of one cell's engine and trainer."""
    heartbeat_seconds: Positive = 1.0
    """Time between two heartbeats of a cell, seconds."""
    lost_after_seconds: Positive = 15.0
    """Silence after which a cell is lost, seconds; at least three heartbeats."""
    handoff_seconds: NotNegative = 2.0
    """How long a leaving cell keeps its caches for those that take over, seconds; 0: they compute everything again."""

    @model_validator(mode="after")
    def _a_late_heartbeat_is_no_death(self) -> Self:
        least = 3 * self.heartbeat_seconds
        if self.lost_after_seconds < least:
            rule = f"must be at least 3 * cells.heartbeat_seconds = {least:g}"
            raise refuse("cells.lost_after_seconds", self.lost_after_seconds, rule)
        return self


def check_placement(schedule: ScheduleSection, cells: CellsSection) -> None:
    """Whether the cells can keep the schedule. Raises the refusal of the first rule that is broken."""
    _check_trainers(schedule, cells)
    if schedule.kind == "colocate" and not cells.standalone and schedule.phi:
        rule = "colocate without standalone engines trains when nothing runs: what is ahead would wait; set it to 0"
        raise refuse("schedule.phi", schedule.phi, rule)
    if schedule.dispatch == "continuous":
        _check_continuous(schedule, cells)


def _check_trainers(schedule: ScheduleSection, cells: CellsSection) -> None:
    key, found = "cells.trainers", cells.trainers
    if schedule.kind != "async":
        if found:
            raise refuse(key, found, f'schedule.kind = "{schedule.kind}" moves cells by itself; set it to 0')
        return
    most = cells.count if cells.standalone else cells.count - 1
    if not 1 <= found <= most:
        least = "give at least 1" if most else "raise cells.count or cells.standalone"
        limit = "cells.count" if cells.standalone else "cells.count - 1, for one cell has to serve"
        raise refuse(key, found, f"async needs 1 <= trainers <= {most} ({limit}); {least}")


def _check_continuous(schedule: ScheduleSection, cells: CellsSection) -> None:
    """Under continuous dispatch w stays near (phi + mu) N B: a cell that waits for it to fall has to have room."""
    moving = {"elastic": 1, "colocate": cells.count, "async": 0}[schedule.kind]
    size = schedule.executions + schedule.oversample
    depth = round((schedule.phi + schedule.mu) * schedule.groups) * size
    room = (cells.count + cells.standalone - moving) * cells.concurrency
    if moving and depth > room:
        rule = (
            f"{depth} executions are under way at all times, and no cell may train before the others' {room} places "
            'hold them; use "boundary", or raise cells.concurrency or cells.standalone'
        )
        raise refuse("schedule.dispatch", schedule.dispatch, rule)
