"""Events about cells and their roles (design §6)."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from schemas.base import Model, Token

CellRole = Literal["rollout", "train"]


class CellRegistered(Model):
    """Said by `cell`: this instance now is cell c, in rollout until the log says that it trains."""

    type: Literal["CellRegistered"] = "CellRegistered"
    v: Literal[1] = 1
    cell: NonNegativeInt
    instance: Token
    url: str
    capacity: PositiveInt
    """Concurrent executions its engine takes (C_e)."""
    version: NonNegativeInt
    """Policy version its engine serves."""


class CellLost(Model):
    """Said by `scheduler`'s shell: heartbeats of this instance stopped. It never counts again under this instance."""

    type: Literal["CellLost"] = "CellLost"
    v: Literal[1] = 1
    cell: NonNegativeInt
    instance: Token
    reason: str


class RoleTransitionRequested(Model):
    """Said by `scheduler`: the cell leaves C_R now."""

    type: Literal["RoleTransitionRequested"] = "RoleTransitionRequested"
    v: Literal[1] = 1
    transition: Token
    cell: NonNegativeInt
    instance: Token
    to: CellRole


class RoleTransitionPhaseCompleted(Model):
    """Said by `cell`: one phase of a transition, with its duration.

    To training: stop (admits no requests), reroute (its routes move), pin (its caches stay), cancel (its requests end,
    to be taken up elsewhere), handoff (its caches are fetched), offload, restore. To rollout: offload, restore, admit.
    """

    type: Literal["RoleTransitionPhaseCompleted"] = "RoleTransitionPhaseCompleted"
    v: Literal[1] = 1
    transition: Token
    cell: NonNegativeInt
    phase: str
    seconds: NonNegativeFloat
    requests: NonNegativeInt = 0
    """Requests in flight that `cancel` ended."""
    resident_bytes: NonNegativeInt = 0
    """Memory of the cell's process that lies in RAM after the phase; 0: not measured."""


class RoleTransitionCompleted(Model):
    """Said by `cell`: it now has the role; to rollout: it counts in C_R again."""

    type: Literal["RoleTransitionCompleted"] = "RoleTransitionCompleted"
    v: Literal[1] = 1
    transition: Token
    cell: NonNegativeInt
    instance: Token
    to: CellRole
    version: NonNegativeInt
    """Policy version its engine (rollout) or trainer (train) holds."""


class RoleTransitionFailed(Model):
    """Said by `cell`: the transition was rolled back; the cell keeps its former role."""

    type: Literal["RoleTransitionFailed"] = "RoleTransitionFailed"
    v: Literal[1] = 1
    transition: Token
    cell: NonNegativeInt
    instance: Token
    phase: str
    reason: str
