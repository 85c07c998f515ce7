"""Events about trees, assessments, rewards and the readiness of groups."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from schemas.base import Digest, Model, Token
from schemas.refs import BlobRef, StateRef

Role = Literal["main", "main-summary", "sub-agent", "sub-agent-summary", "auxiliary", "abandoned"]
Standing = Literal["valid", "placeholder", "excluded"]


class LeafSummary(Model):
    """One leaf of a tree: a candidate trajectory."""

    leaf: Token
    """The call at the end of the path."""
    role: Role
    tokens: NonNegativeInt
    """Length of the root-to-leaf path."""
    targets: NonNegativeInt
    """Policy-generated tokens on the path."""
    final_main: bool = False


class TreeBuilt(Model):
    """Said by `builder` after the records are sealed: the tree that CALL alone gives."""

    type: Literal["TreeBuilt"] = "TreeBuilt"
    v: Literal[1] = 1
    execution: Token
    digest: Digest
    """Of the canonical tree: the live one must have the same."""
    nodes: NonNegativeInt
    leaves: tuple[LeafSummary, ...]
    body: BlobRef | None
    """The tree itself, for admission; None when it has no node."""


class AssessmentRecorded(Model):
    """Said by `evaluator`: what one assessment found; a later one never overwrites it."""

    type: Literal["AssessmentRecorded"] = "AssessmentRecorded"
    v: Literal[1] = 1
    assessment: Token
    execution: Token
    designated: bool
    attempt: PositiveInt
    state: StateRef | None
    branch: Token | None
    """The call whose state was judged, when known."""
    score: float | None
    """In [0, 1]; None when not valid."""
    valid: bool
    seconds: NonNegativeFloat
    detail: str = ""


class RewardAssigned(Model):
    """Said by `evaluator`: the designated assessment supplies the execution's reward."""

    type: Literal["RewardAssigned"] = "RewardAssigned"
    v: Literal[1] = 1
    execution: Token
    group: Token
    reward: float
    placeholder: bool = False
    """Nothing was assessable: zero by policy, counted in the statistics, no targets."""


class RewardUnresolved(Model):
    """Said by `evaluator`: the budget ended without a valid reward; the execution is excluded, its peers stay."""

    type: Literal["RewardUnresolved"] = "RewardUnresolved"
    v: Literal[1] = 1
    execution: Token
    group: Token
    attempts: NonNegativeInt
    reason: str


class Outcome(Model):
    """How one execution stands in its group's statistics."""

    execution: Token
    standing: Standing
    reward: float | None
    """None exactly when excluded."""


class GroupReady(Model):
    """Said by `admission`: all N executions are closed, and each is validly scored or excluded."""

    type: Literal["GroupReady"] = "GroupReady"
    v: Literal[1] = 1
    group: Token
    index: NonNegativeInt
    version: NonNegativeInt
    outcomes: tuple[Outcome, ...]
