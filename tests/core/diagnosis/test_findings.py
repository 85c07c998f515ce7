"""Every finding speaks where it should and is silent where it should, by hand-told runs and by simulated ones."""

import re

import pytest

from gyre.core.diagnosis.doctor import KINDS
from tests.core.diagnosis import scenes_rollout, scenes_training
from tests.core.diagnosis.scene import Scene, findings

PAIRS = [
    (name, number, speaks, silent)
    for name in KINDS
    for number, (speaks, silent) in enumerate(
        [*scenes_rollout.SCENES.get(name, ()), *scenes_training.SCENES.get(name, ())]
    )
]
NAMES = [f"{name}-{number}" for name, number, _, _ in PAIRS]


def test_every_finding_has_a_run_in_which_it_speaks() -> None:
    assert {name for name, *_ in PAIRS} == set(KINDS)


@pytest.mark.parametrize(("name", "number", "speaks", "silent"), PAIRS, ids=NAMES)
def test_a_finding_speaks_with_numbers_evidence_and_a_command_and_is_silent_otherwise(
    name: str, number: int, speaks: Scene, silent: Scene
) -> None:
    found = [each for each in findings(speaks) if each.name == name]
    assert len(found) == 1
    assert re.search(r"\d", found[0].says)
    assert found[0].evidence
    assert set(found[0].evidence) <= speaks.events
    assert found[0].next.startswith("gyre ")
    assert "{run}" in found[0].next
    assert name not in [each.name for each in findings(silent)]
