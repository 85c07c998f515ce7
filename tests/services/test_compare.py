"""What a comparison runs and simulates; the real thing is in tests/e2e."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gyre.config import Config
from gyre.core.staleness import boundary_mean, expected_mean
from gyre.errors import ConfigError
from gyre.harnesses.stub.workload import tokens_of
from schemas.dispatch import LaunchGranted
from schemas.roles import CellLost
from services.cli.compare import draw, told
from services.compare import Compared, Comparison, Found, Gauge, describe, simulated_of, speedups, variants
from services.counterpart import StubWork, stub_options
from tests.services.conftest import Gyre, refusal

EXAMPLE = Path(__file__).parents[2] / "examples" / "compare.toml"


def example(*overrides: str) -> Config:
    return Config.load(EXAMPLE, overrides)


def test_the_example_is_what_was_agreed() -> None:
    config = example()
    schedule, options = config.schedule, stub_options(config)
    assert config.run.steps * schedule.groups * schedule.executions == 64
    assert (config.cells.count, options.calls) == (4, 20)
    assert config.modelled.token_seconds * options.tokens == pytest.approx(1.748 * 10)
    assert config.modelled.training_seconds == pytest.approx(13.4 / 8 * 10 * (16 * 288 / 8) / 512, rel=1e-3)


def test_every_schedule_has_the_same_staleness_cells_and_executions() -> None:
    chosen = variants(example("run.name=c"))
    assert [each.run.name for each in chosen.values()] == ["c-elastic", "c-async", "c-colocate"]
    assert [describe(each) for each in chosen.values()] == [
        "phi = 0.5, mu = 2",
        "phi = 1, mu = 1, no streaming, 2 of 4 cells train",
        "phi = 0, mu = 3, no streaming",
    ]
    for each in chosen.values():
        schedule = each.schedule
        assert boundary_mean(schedule.phi, schedule.mu) == 1.0
        assert (each.cells.count, each.run.steps, schedule.groups) == (4, 4, 4)


def test_the_simulator_finds_elastic_faster_at_the_staleness_that_theory_says() -> None:
    chosen = variants(example())
    found = {kind: simulated_of(each) for kind, each in chosen.items()}
    assert min(speedups(found).values()) > 1.1
    for kind, each in chosen.items():
        schedule = each.schedule
        expected = expected_mean(each.run.steps, schedule.groups, schedule.phi, schedule.mu)
        assert found[kind].staleness == pytest.approx(expected)
        assert 0.3 < found[kind].utilisation < 1.0


def test_the_simulator_is_given_the_very_executions_that_the_stub_draws() -> None:
    config = example()
    work = StubWork(config, stub_options(config))
    jobs = work.jobs(3, "any", 4)
    assert [job.work for job in jobs] == [tokens_of(stub_options(config), f"x3-{i}") * 0.10925 for i in range(4)]
    assert sum(work.micro_steps(3)) * config.schedule.groups == pytest.approx(18.85)


def test_a_gauge_begins_at_the_first_launch() -> None:
    gauge = Gauge()
    for seconds, event in (
        (100.0, CellLost(cell=0, instance="i", reason="none began")),
        (140.0, LaunchGranted(execution="x0-0")),
        (141.5, LaunchGranted(execution="x0-1")),
    ):
        gauge.add(seconds, event)
    assert gauge.found().seconds == 1.5


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("schedule.mu=1", "schedule.phi = 0.25: E[d] = phi + (mu - 1) / 2 = 0.25: no colocate schedule has it"),
        (
            "model.path=nano",
            'model.path = nano: compute whose durations are known is needed; set model.path = "modelled"',
        ),
        ('harness.command=["true"]', "harness.command = true: what an execution asks for must be known; use {stub}"),
        ('harness.command=["{stub}", "--calls", "x"]', "--calls: 'x' is not a number"),
        ("schedule.kind=colocate", "schedule.kind = colocate, boundary: the baselines follow from an elastic schedule"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(override: str, said: str) -> None:
    more: tuple[Any, ...] = ("schedule.phi=0.25", "schedule.groups=4") if "mu" in override else ()
    more += ("schedule.phi=0",) if "colocate" in override else ()
    with pytest.raises(ConfigError) as refused:
        _simulate_all(example(override, *more))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_command_refuses_before_anything_starts(gyre: Gyre, tmp_path: Path) -> None:
    line = refusal(gyre("compare", EXAMPLE, "--set", "model.path=nano"))
    assert "model.path = nano" in line
    assert list(tmp_path.iterdir()) == []


def _simulate_all(config: Config) -> None:
    for each in variants(config).values():
        simulated_of(each)


def test_the_table_sets_real_and_simulated_side_by_side() -> None:
    delays = {"launch": {"count": 64, "p50": 0.042, "p95": 0.128}}
    seconds = {"elastic": (66.0, 60.0), "async": (95.7, 90.0), "colocate": (79.2, 72.0)}
    done: Comparison = {
        kind: Compared(
            each, each.run.name, Found(seconds[kind][0], 0.8, 0.75), Found(seconds[kind][1], 0.8, 0.75), delays
        )
        for kind, each in variants(example("run.name=c")).items()
    }
    console = Console(record=True, width=160, file=StringIO())
    draw(done, console)
    lines = console.export_text().splitlines()
    row = next(line for line in lines if "async" in line)
    assert "95.7" in row
    assert "90.0 (+6.3%)" in row
    assert "1.450x" in row
    assert "1.500x (-3.3%)" in row
    assert any("launch" in line and "42" in line and "128" in line for line in lines)
    as_data = told(done)
    assert as_data["schedules"]["async"] == {"seconds": 95.7, "utilisation": 0.8, "staleness": 0.75}
    assert as_data["speedups"] == pytest.approx({"async": 1.45, "colocate": 1.2})
    assert as_data["simulated_speedups"] == pytest.approx({"async": 1.5, "colocate": 1.2})
