"""Events about trees, assessments, rewards and the readiness of groups."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from schemas.base import Digest, Model, Token
from schemas.refs import BlobRef, StateRef

Role = Literal["main", "main-summary", "sub-agent", "sub-agent-summary", "auxiliary", "abandoned"]
Standing = Literal["valid", "placeholder", "excluded"]
EvaluatorKind = Literal["tests", "command", "judge"]
"""The task's own tests, a command that is given instead, a model that writes tests of its own."""


ROUNDING = 1e-9
"""Part of the largest reward, and of 1, within which rewards are equal: sums such as 0.1 + 0.2 are not told exactly."""


def alike(lowest: float, highest: float) -> bool:
    """Whether two rewards, and whatever lies between them, differ by no more than rounding does; dimensionless."""
    return highest - lowest <= ROUNDING * max(1.0, abs(lowest), abs(highest))


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


class Provenance(Model):
    """Who judged, and by which rules: equal digests score by the same ones."""

    evaluator: EvaluatorKind
    digest: Digest
    """SHA-256 of all that decides a score: the command, the files it names, the task's tests and their time limit; of a
    judge, its model, its prompt, its tools and limits, and the instruction."""
    sandbox: str = ""
    """Kind of sandbox in which the tests ran; "" when they never came to run."""
    image: str = ""
    """Container image that was asked for; "" where there was none to choose."""
    model: str = ""
    """Of a judge: the model that was asked."""
    url: str = ""
    """Of a judge: where it was asked."""
    tokens: NonNegativeInt = 0
    """Of a judge: tokens of its context and its answers, all requests together."""
    transcript: BlobRef | None = None
    """Of a judge: its requests, answers and own tests, as lines of JSON."""


class AssessmentRecorded(Model):
    """Said by `evaluator`: what one assessment found; a later one never overwrites it."""

    type: Literal["AssessmentRecorded"] = "AssessmentRecorded"
    v: Literal[2] = 2
    assessment: Token
    execution: Token
    designated: bool
    """Whether it may supply the reward: not so of a state that was left behind while it ran, nor of a regrade."""
    attempt: PositiveInt
    state: StateRef | None
    branch: Token | None
    """The call whose state was judged, when known."""
    score: float | None
    """In [0, 1]; None when not valid."""
    valid: bool
    seconds: NonNegativeFloat
    detail: str = ""
    provenance: Provenance | None = None
    """None in what was said before there was a choice, or where nobody came to judge."""


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
    """Said by `admission`: N executions are closed, each validly scored or excluded; of a surplus the first N valid."""

    type: Literal["GroupReady"] = "GroupReady"
    v: Literal[1] = 1
    group: Token
    index: NonNegativeInt
    version: NonNegativeInt
    outcomes: tuple[Outcome, ...]


class RegradeStarted(Model):
    """Said by `evaluator`: the preserved states of a run are about to be scored once more; no reward changes by it."""

    type: Literal["RegradeStarted"] = "RegradeStarted"
    v: Literal[1] = 1
    regrade: Token
    """Names the scoring: the kind of evaluator, the beginning of its digest, and which time it is if not the first."""
    evaluator: str
    """`tests` for the tasks' own, else the command line that was given."""
    digest: Digest
    """Of the command, the files it names and every task's tests: the same digest scores by the same rules."""


class RewardChange(Model):
    """An execution that a regrade scores otherwise than its reward says."""

    execution: Token
    group: Token
    old: float | None
    """The reward in its group's statistics; None where it was excluded."""
    new: float | None
    """What the regrade found; None where it found no valid score."""


class RegradeCompleted(Model):
    """Said by `evaluator`: what a regrade found so far in all; one that is taken up again later says it anew."""

    type: Literal["RegradeCompleted"] = "RegradeCompleted"
    v: Literal[1] = 1
    regrade: Token
    evaluator: str
    digest: Digest
    states: NonNegativeInt
    """Preserved states that were assessed."""
    valid: NonNegativeInt
    """Of these, with a valid score."""
    changed: tuple[RewardChange, ...]
