"""What a configuration may say, and how it is refused: one line naming key, value and rule."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from gyre.config import Config
from gyre.errors import ConfigError

EXAMPLE = """
[run]
name = "first"
steps = 4

[schedule]
groups = 8
phi = 0.25

[harness]
command = ["{python}", "agent.py"]
"""


def _refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.load(None, overrides)
    return str(caught.value)


def test_without_a_file_every_default_holds_the_papers_values() -> None:
    config = Config.load(None)
    assert (config.optimizer.lr, config.optimizer.betas, config.optimizer.eps) == (1e-6, (0.9, 0.95), 1e-15)
    assert (config.optimizer.weight_decay, config.optimizer.clip) == (0.01, 1.0)
    assert (config.objective.ratio_low, config.objective.ratio_high) == (0.995, 1.005)
    assert (config.objective.weight_cap, config.objective.loss_cap) == (5, 100)
    assert config.admission.j_max == 5


def test_an_algorithm_brings_its_own_bounds() -> None:
    grpo = Config.load(None, ["objective.name=grpo", "objective.ratio_high=1.28"]).objective
    assert (grpo.ratio_low, grpo.ratio_high) == (0.8, 1.28)
    again = Config.recorded(Config.load(None, ["objective.name=grpo", "objective.ratio_high=1.28"]).model_dump())
    assert again.objective == grpo


def test_only_algorithms_of_whole_executions_mask_them() -> None:
    assert Config.load(None).objective.mask_bounds == (0.995, 1.005)
    low, high = Config.load(None, ["objective.name=ppo"]).objective.mask_bounds
    assert low < 1e-300
    assert high > 1e300


def test_a_file_and_then_overrides_replace_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(EXAMPLE, encoding="utf-8")
    config = Config.load(file, ["run.steps=6", "model.path=smollm2", 'run.name="second"', "optimizer.betas=[0.8, 0.9]"])
    assert (config.run.name, config.run.steps, config.model.path) == ("second", 6, "smollm2")
    assert (config.schedule.groups, config.schedule.phi, config.schedule.mu) == (8, 0.25, 2)
    assert config.harness.command == ("{python}", "agent.py")
    assert config.optimizer.betas == (0.8, 0.9)


def test_a_name_of_digits_stays_a_name() -> None:
    assert Config.load(None, ["run.name=12"]).run.name == "12"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("admission.j_max=0", "admission.j_max = 0: input should be greater than or equal to 1"),
        ("cells.count=0", "cells.count = 0: input should be greater than or equal to 1"),
        ("reward.attempts=8", "reward.attempts = 8: input should be less than or equal to 7"),
        ("schedule.executions=1", "schedule.executions = 1: input should be greater than or equal to 2"),
        ("schedule.rho_min=0", "schedule.rho_min = 0: input should be greater than 0"),
        ("schedule.rho_min=1.5", "schedule.rho_min = 1.5: input should be less than or equal to 1"),
        ("objective.weight_cap=0.5", "objective.weight_cap = 0.5: must be at least 1"),
        ("optimizer.lr=nan", "optimizer.lr = nan: input should be a finite number"),
        ("run.steps=many", "run.steps = 'many': input should be a valid integer"),
        ("bus.durability=never", "bus.durability = 'never': input should be 'always' or 'laptop'"),
        ("run=3", "run = 3: is a section; write [run] with its fields below"),
    ],
)
def test_values_out_of_range_are_refused_with_key_value_and_rule(override: str, line: str) -> None:
    assert _refused(override).startswith(line)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("schedule.phi=0.3", "schedule.phi = 0.3: phi * groups must be a whole number of groups, found 0.3 * 4 = 1.2"),
        ("packing.row_tokens=9000", "packing.row_tokens = 9000: must not exceed packing.micro_step_tokens = 8192"),
        ("packing.row_tokens=100", "packing.row_tokens = 100: must be at least rollout.context_tokens = 2048"),
        ("rollout.context_tokens=256", "rollout.context_tokens = 256: must exceed rollout.max_tokens = 256"),
        ("cells.lost_after_seconds=1", "cells.lost_after_seconds = 1.0: must be at least 3 * cells.heartbeat_seconds"),
        ("optimizer.eps=1e-46", "optimizer.eps = 1e-46: must be at least 1.1754943508222875e-38, the smallest normal"),
        ("objective.ratio_low=1.1", "objective.ratio_low = 1.1: ratio_low <= 1 <= ratio_high must hold"),
        ("engine.url=http://a:1", "engine.url = 'http://a:1': is of a server; set engine.kind"),
        ("trainer.tensor=2", "trainer.tensor = 2: is of ranks; set trainer.kind"),
        ("trainer.checkpoint=distributed", "trainer.checkpoint = 'distributed': is of Megatron; set trainer.kind"),
        ("trainer.grouped_experts=true", "trainer.grouped_experts = True: is of Megatron; set trainer.kind"),
        ("tasks.train=words:0:train", "tasks.train = 'words:0:train': write words:<count>:<split>"),
        ("tasks.heldout=words:5:test", "tasks.heldout = 'words:5:test': write words:<count>:<split>"),
    ],
)
def test_impossible_combinations_are_refused_with_what_to_do(override: str, line: str) -> None:
    assert _refused(override).startswith(line)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("schedule.phii=1", "schedule.phii = 1: unknown key; did you mean schedule.phi?"),
        ("shedule.mu=1", "shedule = {'mu': 1}: unknown key; did you mean schedule?"),
        ("run.lr=1", "run.lr = 1: unknown key; did you mean optimizer.lr?"),
        ("evaluation.zzz=3", "evaluation.zzz = 3: unknown key; known here: every, episodes, concurrency"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_valid_one_named(override: str, line: str) -> None:
    assert _refused(override) == line


def test_every_problem_has_a_line_of_its_own_and_stays_apart_for_programs() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(None, ["cells.count=0", "admission.j_max=0"])
    assert len(str(caught.value).splitlines()) == 2
    first = caught.value.problems[0]
    assert (first.key, first.value) == ("cells.count", "0")


@pytest.mark.parametrize("override", ["steps", "=3", "run..steps=3", "run.steps.more=3"])
def test_an_override_that_is_not_section_field_value_is_refused(override: str) -> None:
    assert "\n" not in _refused("run.steps=2", override)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: file: no such file"):
        Config.load(tmp_path / "absent.toml")


@pytest.mark.parametrize("content", [b"[run\n", b"\xff\xfe", b"[run]\nsteps = 1\nsteps = 2\n"])
def test_a_file_that_is_no_toml_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="not readable as TOML") as caught:
        Config.load(file)
    assert "\n" not in str(caught.value)


def test_the_resolved_table_reads_back_as_the_same_configuration() -> None:
    config = Config.load(None, ["schedule.order_seed=4", "harness.timeout_seconds=9"])
    assert Config.of(config.table()) == config
    assert Config.of(Config.load(None).table()) == Config.load(None)


def test_the_digest_tells_configurations_apart_and_nothing_else() -> None:
    digest = Config.load(None).digest()
    assert Config.load(None, ["schedule.mu=2"]).digest() == digest  # the default, said aloud
    assert Config.load(None, ["schedule.mu=1"]).digest() != digest


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config.load(None).run.steps = 3  # type: ignore[misc]


def test_every_field_is_described() -> None:
    sections = [field.annotation for field in Config.model_fields.values()]
    fields = [
        (name, field)
        for section in sections
        if isinstance(section, type) and issubclass(section, BaseModel)
        for name, field in section.model_fields.items()
    ]
    assert len(fields) > 50
    assert [name for name, field in fields if not (field.description or "").endswith((".", "]"))] == []


def test_the_plan_of_the_schedule_takes_the_runs_seed_unless_the_order_has_its_own() -> None:
    config = Config.load(None, ["run.seed=5", "evaluation.every=3"])
    plan = config.plan(["a", "b"])
    assert (plan.steps, plan.groups, plan.executions, plan.cells, plan.tasks) == (20, 4, 8, 2, ("a", "b"))
    assert (plan.seed, plan.order_seed, plan.evaluation_every) == (5, 5, 3)
    assert Config.load(None, ["schedule.order_seed=0", "run.seed=5"]).plan(["a"]).order_seed == 0


def test_reading_a_configuration_needs_no_torch() -> None:
    code = "import sys; from gyre.config import Config; Config.load(None); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "False"


def test_a_run_from_before_a_key_goes_on_as_it_did() -> None:
    table = Config.load(None).table()
    assert Config.recorded(table).packing.share_prefixes
    del table["packing"]["share_prefixes"]
    assert not Config.recorded(table).packing.share_prefixes
    assert Config.of(table).packing.share_prefixes


def test_a_bound_that_came_later_does_not_refuse_what_a_log_carries() -> None:
    table = Config.load(None).table()
    table["objective"]["weight_cap"], table["optimizer"]["eps"] = 0.5, 1e-46
    recorded = Config.recorded(table)
    assert (recorded.objective.weight_cap, recorded.optimizer.eps) == (0.5, 1e-46)
    assert recorded.table() == table
    with pytest.raises(ConfigError) as refused:
        Config.of(table)
    assert {problem.key for problem in refused.value.problems} == {"objective.weight_cap", "optimizer.eps"}
