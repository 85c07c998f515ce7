"""Which schedules and cells go together, and what is said of those that do not."""

import pytest

from gyre.config import Config
from gyre.core.plan import Plan
from gyre.errors import ConfigError


def _plan(*overrides: str) -> Plan:
    return Config.load(None, overrides).plan(["a"])


def _refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.load(None, overrides)
    return str(caught.value)


def test_a_plain_schedule_is_elastic_streaming_boundary_fifo_and_has_no_surplus() -> None:
    plan = _plan()
    assert (plan.kind, plan.stream, plan.dispatching, plan.launch_order) == ("elastic", True, "boundary", "fifo")
    assert (plan.oversample, plan.standalone, plan.trainers) == (0, 0, 0)


def test_every_choice_reaches_the_plan() -> None:
    plan = _plan(
        "schedule.kind=async",
        "schedule.stream=false",
        "schedule.dispatch=continuous",
        "schedule.launch_order=longest_predicted",
        "schedule.oversample=2",
        "cells.standalone=1",
        "cells.trainers=2",
    )
    assert (plan.kind, plan.stream, plan.dispatching) == ("async", False, "continuous")
    assert (plan.launch_order, plan.oversample) == ("longest_predicted", 2)
    assert (plan.standalone, plan.trainers) == (1, 2)
    assert (plan.size, plan.depth) == (10, 10)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["schedule.kind=fast"], "schedule.kind = 'fast': input should be 'elastic', 'async' or 'colocate'"),
        (["schedule.oversample=-1"], "schedule.oversample = -1: input should be greater than or equal to 0"),
        (["schedule.kind=async"], "cells.trainers = 0: async needs 1 <= trainers <= 1 (cells.count - 1"),
        (["schedule.kind=async", "cells.trainers=2"], "cells.trainers = 2: async needs 1 <= trainers <= 1"),
        (["schedule.kind=async", "cells.count=1", "cells.trainers=1"], "cells.trainers = 1: async needs 1 <= trainers"),
        (["cells.trainers=1"], 'cells.trainers = 1: schedule.kind = "elastic" moves cells by itself; set it to 0'),
        (
            ["schedule.phi=1e308"],
            "schedule.phi = 1e+308: phi * groups must be a whole number of groups, found 1e+308 *",
        ),
        (["schedule.kind=colocate"], "schedule.phi = 0.5: colocate without standalone engines trains when nothing"),
        (["schedule.dispatch=continuous"], "schedule.dispatch = 'continuous': 80 executions are under way at all"),
        (
            ["schedule.kind=colocate", "schedule.phi=0", "schedule.dispatch=continuous"],
            "schedule.dispatch = 'continuous': 64 executions are under way at all times, and no cell may train",
        ),
    ],
)
def test_a_schedule_that_no_cells_could_keep_is_refused(overrides: list[str], line: str) -> None:
    assert _refused(*overrides).startswith(line)


@pytest.mark.parametrize(
    "overrides",
    [
        ["schedule.kind=async", "cells.trainers=1"],
        ["schedule.kind=async", "cells.count=1", "cells.trainers=1", "cells.standalone=1"],
        ["schedule.kind=colocate", "schedule.phi=0", "schedule.mu=4"],
        ["schedule.kind=colocate", "cells.standalone=1"],
        ["schedule.dispatch=continuous", "cells.concurrency=80"],
        ["schedule.kind=colocate", "schedule.dispatch=continuous", "cells.standalone=5"],
    ],
)
def test_one_that_they_can_keep_is_accepted(overrides: list[str]) -> None:
    assert Config.load(None, overrides).plan(["a"]).kind in ("elastic", "async", "colocate")


def test_a_recorded_run_from_before_there_was_a_choice_is_scheduled_as_it_was() -> None:
    table = Config.load(None).table()
    for key in ("stream", "dispatch", "launch_order", "group_version"):
        del table["schedule"][key]
    for key in ("standalone", "trainers"):
        del table["cells"][key]
    assert Config.recorded(table).plan(["a"]) == _plan("schedule.group_version=published")
