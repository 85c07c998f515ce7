"""`gyre replay RUN --why SEQ.INDEX`: both ways from an event of a recorded run."""

import json
from typing import Any

import pytest

from tests.services.conftest import Gyre, refusal
from tests.services.recorded import SMALL


def asked(gyre: Gyre, *arguments: str) -> dict[str, Any]:
    result = gyre("replay", SMALL, "--why", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_step_goes_back_to_a_dispatch_with_times(gyre: Gyre) -> None:
    found = asked(gyre, "458")
    assert (found["event"]["id"], found["event"]["type"], found["event"]["seconds"]) == ("458.0", "OptimizerStepped", 0)
    kinds = [each["type"] for each in found["back"]]
    assert kinds[:4] == ["GradientReduced", "ReductionOpened", "MicroStepCompleted", "MicroStepClaimed"]
    assert kinds[-5:] == [
        "ExecutionTerminated", "ExecutionLaunched", "LaunchGranted", "ExecutionDispatched", "GroupDispatched",
    ]  # fmt: skip
    times = [each["seconds"] for each in found["back"]]
    assert times == sorted(times, reverse=True)
    assert times[0] < 0
    assert found["cut_at"] is None
    assert all(each["says"] for each in found["back"])


def test_a_dispatch_leads_to_its_update_and_a_fan_is_summed_up(gyre: Gyre) -> None:
    found = asked(gyre, "20", "--hops", "20", "--shown", "2")
    fans = {(fan["hop"], fan["type"]): fan for fan in found["ahead"]}
    admitted = next(fan for (_, kind), fan in fans.items() if kind == "TrajectoriesAdmitted")
    assert (admitted["count"], len(admitted["first"])) == (4, 2)
    assert any(kind == "OptimizerStepped" for _, kind in fans)
    assert max(hop for hop, _ in fans) <= 20


def test_people_read_it_from_the_dispatch_down(gyre: Gyre) -> None:
    lines = gyre("replay", SMALL, "--why", "13.0", "--hops", "2").stdout.splitlines()
    target = next(place for place, line in enumerate(lines) if line.startswith("=>"))
    assert "EvaluationScored" in lines[target]
    assert "EvaluationStarted" in lines[target - 1] or "also because" in lines[target - 1]
    text = gyre("replay", SMALL, "--why", "459", "--hops", "2").stdout
    assert "+2  6 GroupDispatched, first 3 shown" in text or "+1  6 GroupDispatched, first 3 shown" in text
    assert "nothing came of it" in gyre("replay", SMALL, "--why", "780").stdout


@pytest.mark.parametrize(
    ("event", "words"),
    [("x", "give SEQUENCE or SEQUENCE.INDEX"), ("9999", "the log ends at sequence 780"), ("1.7", "holds 1.0 to 1.0")],
)
def test_an_event_that_is_not_there_is_one_line(gyre: Gyre, event: str, words: str) -> None:
    assert words in refusal(gyre("replay", SMALL, "--why", event))
