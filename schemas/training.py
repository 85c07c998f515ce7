"""Events about batches, micro-steps, the ledger and optimizer steps (design §7, §8)."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from schemas.base import Float32s, Int32s, Model, Token, is_empty, is_none
from schemas.refs import BlobRef, WeightsRef
from schemas.rewards import Role


class ExpertSpan(Model):
    """The experts of consecutive tokens of a path, as a call's record has them."""

    tokens: PositiveInt
    body: BlobRef | None
    """`ModelCallRecorded.experts`; None where the engine told nothing."""
    start: NonNegativeInt
    """The body's row of the first of them."""


class Trajectory(Model):
    """One admitted root-to-leaf path with its fixed targets; arrays have one entry a token."""

    leaf: Token
    role: Role
    ids: Int32s
    """(T,) token ids of the whole path."""
    target: bytes
    """(T,) one byte a token: 1 where the token carries loss."""
    logprobs: Float32s
    """(T,) behaviour log-probability, nats; 0 where target is 0."""
    targets: NonNegativeInt
    """Ones in `target`."""
    experts: tuple[ExpertSpan, ...] = Field(default=(), exclude_if=is_empty)
    """Together T tokens: at whose positions before them which experts were taken. Empty: nothing is known of them."""


class TrajectoriesAdmitted(Model):
    """Said by `admission`, one for each execution of a ready group: suffices to rebuild the samples."""

    type: Literal["TrajectoriesAdmitted"] = "TrajectoriesAdmitted"
    v: Literal[1] = 1
    execution: Token
    group: Token
    version: NonNegativeInt
    advantage: float
    targets: NonNegativeInt
    """L_i: targets over all admitted trajectories."""
    seed: NonNegativeInt
    trajectories: tuple[Trajectory, ...]


class BatchOpened(Model):
    """Said by `packer`: step t collects its B groups; the weights are fixed at `version` until it ends."""

    type: Literal["BatchOpened"] = "BatchOpened"
    v: Literal[1] = 1
    step: PositiveInt
    version: NonNegativeInt
    groups: PositiveInt


class GroupAssigned(Model):
    """Said by `packer`: this ready group fills one of the batch's slots."""

    type: Literal["GroupAssigned"] = "GroupAssigned"
    v: Literal[1] = 1
    step: PositiveInt
    group: Token
    version: NonNegativeInt
    staleness: int
    """d = v_t - v_d, training steps."""


class Segment(Model):
    """One trajectory (or a part of its targets) inside a row."""

    execution: Token
    leaf: Token
    ids: Int32s
    """(T,)"""
    target: bytes
    """(T,) one byte a token."""
    logprobs: Float32s
    """(T,) behaviour log-probabilities, nats."""
    advantage: float
    weight: float
    """1 / (B N L_i): what each target's loss is multiplied by, so that the batch's gradient is a plain sum."""
    experts: tuple[ExpertSpan, ...] = Field(default=(), exclude_if=is_empty)
    """As of the trajectory, for these T tokens."""


class Row(Model):
    """Segments laid end to end; attention stays inside each segment, positions restart at 0."""

    segments: tuple[Segment, ...]


class MaskDecided(Model):
    """The execution-level decision that a split execution's backward micro-steps carry."""

    execution: Token
    ratio: PositiveFloat
    """s_i"""
    mask: Literal[0, 1]
    """m_i"""


class MicroStepEnqueued(Model):
    """Said by `packer`, each its own commit: a unit of training input, and an entry of the step queue."""

    type: Literal["MicroStepEnqueued"] = "MicroStepEnqueued"
    v: Literal[1] = 1
    step: PositiveInt
    micro_step: NonNegativeInt
    kind: Literal["train", "measure"]
    """measure: forward only, says RatioMeasured; train: forward and backward."""
    rows: tuple[Row, ...]
    masks: tuple[MaskDecided, ...] = ()
    """For executions whose targets do not all lie in this micro-step."""
    tokens: NonNegativeInt


class MicroStepClaimed(Model):
    """Said by `cell`: its stream sequence is the fencing token."""

    type: Literal["MicroStepClaimed"] = "MicroStepClaimed"
    v: Literal[1] = 1
    step: PositiveInt
    micro_step: NonNegativeInt
    cell: NonNegativeInt
    instance: Token


class Moments(Model):
    """Sums over targets of log p_roll and log pi_theta (nats): with their number, what a correlation of them needs."""

    sum_rollout: float
    sum_train: float
    sum_rollout_squared: NonNegativeFloat
    sum_train_squared: NonNegativeFloat
    sum_product: float


class ExpertAgreement(Model):
    """How far the experts that an engine took, and that the trainer takes again, are those its own routers choose.

    At equal weights both are 1 but for rounding; for the experts of other positions little more than chance gives.
    """

    choices: PositiveInt
    """(position, layer) pairs that were compared."""
    overlap: NonNegativeFloat
    """Share of the experts taken that the router would have chosen."""
    top: NonNegativeFloat
    """Share of the choices whose likeliest expert is the router's."""


class ExecutionStats(Model):
    """What one micro-step found about one execution's targets in it."""

    execution: Token
    targets: NonNegativeInt
    ratio: NonNegativeFloat
    """s_i over all of the execution's targets."""
    mask: Literal[0, 1]
    loss: float
    """Sum of l_u over the targets in this micro-step."""
    max_delta_log_p: NonNegativeFloat
    """max |log pi_theta - log p_roll|, nats."""
    k3: float
    """Sum over targets of r - 1 - log r, r = pi_theta / p_roll (a KL estimate)."""
    moments: Moments | None = None
    """None: said before they were summed (MicroStepCompleted v1)."""
    experts: ExpertAgreement | None = Field(default=None, exclude_if=is_none)
    """None: no experts were taken again (routing replay)."""


class RatioMeasured(Model):
    """Said by `cell` in the completion of a measuring micro-step: float64 sum of log rho over the targets seen."""

    type: Literal["RatioMeasured"] = "RatioMeasured"
    v: Literal[1] = 1
    step: PositiveInt
    micro_step: NonNegativeInt
    execution: Token
    log_ratio_sum: float
    count: NonNegativeInt


class ExecutionMasked(Model):
    """Said by `packer` once the counts of an execution's measurements reach L_i."""

    type: Literal["ExecutionMasked"] = "ExecutionMasked"
    v: Literal[1] = 1
    step: PositiveInt
    execution: Token
    ratio: PositiveFloat
    mask: Literal[0, 1]


class Passage(Model):
    """How a cell's pipeline ran since it joined the step, or last discarded: the last completion tells it all."""

    startups: NonNegativeInt
    """Times that it was filled from empty."""
    drains: NonNegativeInt
    """Times that it was emptied."""
    pauses: NonNegativeInt
    """Times that it stood still with rows in it, since no micro-step was queued, and went on from there."""
    rows: NonNegativeInt


class MicroStepCompleted(Model):
    """Said by `cell`, expecting its own claim's sequence: the gradient lies in the cell's accumulator."""

    type: Literal["MicroStepCompleted"] = "MicroStepCompleted"
    v: Literal[2] = 2
    step: PositiveInt
    micro_step: NonNegativeInt
    cell: NonNegativeInt
    instance: Token
    claim: PositiveInt
    stats: tuple[ExecutionStats, ...]
    seconds: NonNegativeFloat
    passage: Passage | None = Field(default=None, exclude_if=is_none)
    """None: the cell's trainer is no pipeline."""


class MicroStepReissued(Model):
    """Said by `packer`: who claimed it died or was fenced out; the next claim expects this sequence."""

    type: Literal["MicroStepReissued"] = "MicroStepReissued"
    v: Literal[1] = 1
    step: PositiveInt
    micro_step: NonNegativeInt
    enqueued: PositiveInt
    """Sequence of the MicroStepEnqueued that holds the rows."""
    reissue: PositiveInt
    """How often it has been reissued, from 1."""
    reason: str


class StreamClosed(Model):
    """Said by `packer`: all of the batch's micro-steps are queued."""

    type: Literal["StreamClosed"] = "StreamClosed"
    v: Literal[1] = 1
    step: PositiveInt
    micro_steps: NonNegativeInt


class StepAborted(Model):
    """Said by `packer`: a micro-step could not be completed within its redeliveries; the run stops here."""

    type: Literal["StepAborted"] = "StepAborted"
    v: Literal[1] = 1
    step: PositiveInt
    micro_step: NonNegativeInt
    reason: str


class CellJoined(Model):
    """Said by `cell`: it holds the step's weights and may claim."""

    type: Literal["CellJoined"] = "CellJoined"
    v: Literal[1] = 1
    step: PositiveInt
    cell: NonNegativeInt
    instance: Token
    version: NonNegativeInt


class JoinWindowClosed(Model):
    """Said by the core `cell`: nobody joins this step any more."""

    type: Literal["JoinWindowClosed"] = "JoinWindowClosed"
    v: Literal[1] = 1
    step: PositiveInt
    members: tuple[NonNegativeInt, ...]


class ContributionDiscarded(Model):
    """Said by `cell`: its accumulated gradient of this step is zeroed; all it completed is reissued."""

    type: Literal["ContributionDiscarded"] = "ContributionDiscarded"
    v: Literal[2] = 2
    step: PositiveInt
    cell: NonNegativeInt
    instance: Token
    reason: str
    broken: bool
    """Whether what it worked on broke: that counts against a micro-step, a cell that is called home does not."""


class Contribution(Model):
    """One micro-step in a reduction."""

    micro_step: NonNegativeInt
    cell: NonNegativeInt
    claim: PositiveInt


class ReductionOpened(Model):
    """Said by the core `cell`: members and claims are frozen; anyone not in here is fenced out."""

    type: Literal["ReductionOpened"] = "ReductionOpened"
    v: Literal[1] = 1
    step: PositiveInt
    epoch: PositiveInt
    members: tuple[NonNegativeInt, ...]
    instances: tuple[Token, ...]
    """The instance of each member, in the same order."""
    contributions: tuple[Contribution, ...]
    reason: str = ""
    """Why the epoch before this one came to nothing; empty if there was none."""


class GradientReduced(Model):
    """Said by the core `cell`: the ledger matched and the sum is there."""

    type: Literal["GradientReduced"] = "GradientReduced"
    v: Literal[1] = 1
    step: PositiveInt
    epoch: PositiveInt
    members: tuple[NonNegativeInt, ...]
    micro_steps: NonNegativeInt
    gradient_norm: NonNegativeFloat
    """Before clipping."""
    seconds: NonNegativeFloat
    sketch: Float32s = b""
    """(256,) linear sketch of the gradient before clipping (`gyre.trainers.sketch`): norms to 9 %. Empty: not taken."""


class OptimizerStepped(Model):
    """Said by the core `cell`, after weights and optimizer state are durable: v + 1."""

    type: Literal["OptimizerStepped"] = "OptimizerStepped"
    v: Literal[1] = 1
    step: PositiveInt
    version: PositiveInt
    weights: WeightsRef
    optimizer: WeightsRef
    loss: float
    gradient_norm: NonNegativeFloat
    clip_coefficient: NonNegativeFloat
    """What the gradient was multiplied by: min(1, clip / norm)."""
    learning_rate: PositiveFloat
    seconds: NonNegativeFloat


class WeightsBroadcast(Model):
    """Said by the core `cell` after a non-final step: members hold the new weights' address."""

    type: Literal["WeightsBroadcast"] = "WeightsBroadcast"
    v: Literal[1] = 1
    step: PositiveInt
    version: PositiveInt
    members: tuple[NonNegativeInt, ...]


class WeightsPublished(Model):
    """Said by the core `cell` after a burst's last step: what rollout engines serve from here on."""

    type: Literal["WeightsPublished"] = "WeightsPublished"
    v: Literal[1] = 1
    version: PositiveInt
    weights: WeightsRef
    seconds: NonNegativeFloat
    transport: Literal["file", "store", "tensor", "group", "mooncake"] | None = Field(default=None, exclude_if=is_none)
    """How they travelled; None: said before there was a choice."""
    sent: NonNegativeInt | None = Field(default=None, exclude_if=is_none)
    """Bytes that a cell needed which had the version before; all of them are `weights.size`."""
    changed: NonNegativeFloat | None = Field(default=None, exclude_if=is_none)
    """Share of the values that differ from the version before, at most 1; None: nobody compared."""


class BurstEnded(Model):
    """Said by `scheduler`: retention decided, before the next dispatch."""

    type: Literal["BurstEnded"] = "BurstEnded"
    v: Literal[1] = 1
    burst: PositiveInt
    version: PositiveInt
    retained: bool
    """Whether the core stays in training."""


class CheckpointSaved(Model):
    """Said by the core `cell`: weights, optimizer and the log position they belong to."""

    type: Literal["CheckpointSaved"] = "CheckpointSaved"
    v: Literal[1] = 1
    step: PositiveInt
    version: PositiveInt
    weights: WeightsRef
    optimizer: WeightsRef
    sequence: PositiveInt
    """Last EV sequence that the state includes."""
