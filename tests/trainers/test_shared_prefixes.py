"""What segments of a row have in common is computed once; loss, ratios and gradient stay those of the formulas."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainers.attention import Run, attach
from gyre.trainers.batches import row_tensors, target_log_probs
from schemas.base import ints, pack_floats, pack_ints
from schemas.training import Row, Segment
from tests.trainers import batch
from tests.trainers.batch import Expected, distance, micro_step

CLOSE = 1e-5  # relative, float32
_random = np.random.default_rng(11)
PROMPT, TURN, TOOL, OTHER_TOOL, LAST, ELSE = (
    _random.integers(0, batch.VOCABULARY, size).tolist() for size in (12, 5, 3, 3, 4, 6)
)
Part = tuple[Sequence[int], bool]
"""Ids, and whether they are targets."""
GROUP: dict[str, tuple[float, list[list[Part]]]] = {
    # two leaves; the first turn trains in one of them and is context of the other
    "branched": (
        0.8,
        [
            [(PROMPT, False), (TURN, True), (TOOL, False), (LAST, True)],
            [(PROMPT, False), (TURN, False), (OTHER_TOOL, False), (ELSE, True)],
        ],
    ),
    # says the same first turn, then something of its own: the same tokens train twice, for two executions
    "echoing": (-0.6, [[(PROMPT, False), (TURN, True), (TOOL, False), (ELSE, True)]]),
    # ends where the others go on
    "short": (1.2, [[(PROMPT, False), (TURN, True)]]),
    # equal to a whole segment of another execution
    "twin": (-0.9, [[(PROMPT, False), (TURN, True), (TOOL, False), (LAST, True)]]),
    # leaves the others inside the prompt
    "early": (0.5, [[(PROMPT[:6], False), (ELSE, True)]]),
    # has nothing in common
    "alone": (-0.4, [[(LAST[::-1], False), (PROMPT, True)]]),
}


def segment(execution: str, leaf: int, advantage: float, parts: Sequence[Part], log_roll: Sequence[float]) -> Segment:
    ids = [token for part, _ in parts for token in part]
    return Segment(
        execution=execution,
        leaf=f"leaf{leaf}",
        ids=pack_ints(ids),
        target=bytes(flag for part, flag in parts for _ in part),
        logprobs=pack_floats(log_roll),
        advantage=advantage,
        weight=1.0,
    )


@cache
def group() -> dict[str, list[Segment]]:
    """Behaviour log-probabilities near the model's own, other ones in each execution; weights 1 / (B N L_i)."""
    model, random = batch.tiny_model().double(), np.random.default_rng(3)
    made = {}
    for name, (advantage, leaves) in GROUP.items():
        shift = 0.004 if advantage > 0 else -0.004  # so that the mask holds no execution back
        total = sum(len(part) for parts in leaves for part, flag in parts if flag)
        segments = []
        for leaf, parts in enumerate(leaves):
            ids = [token for part, _ in parts for token in part]
            with torch.no_grad():
                log_pi = batch.log_probs(model, ids).numpy()
            found = segment(name, leaf, advantage, parts, log_pi + shift + 0.001 * random.standard_normal(len(ids)))
            segments.append(found.model_copy(update={"weight": 1.0 / (batch.ORIGINALS * total)}))
        made[name] = segments
    return made


def everything() -> list[Segment]:
    return [segment for parts in group().values() for segment in parts]


@cache
def wanted() -> Expected:
    return batch.formulas(group())


def distinct(segments: Sequence[Segment]) -> set[tuple[int, ...]]:
    """Every token with all that comes before it."""
    every = [tuple(ints(each.ids)) for each in segments]
    return {ids[: stop + 1] for ids in every for stop in range(len(ids))}


def test_the_group_trains_each_execution_and_shares_more_than_half() -> None:
    assert wanted().mask == dict.fromkeys(GROUP, 1)
    assert len(distinct(everything())) < 0.55 * sum(len(each.target) for each in everything())


@pytest.mark.parametrize("share", [True, False])
def test_loss_and_gradient_are_those_of_the_formulas(share: bool) -> None:
    trainer = batch.trainer(share_prefixes=share)
    stats = trainer.micro_step(micro_step([everything()])).stats
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    weights = {name: parts[0].weight for name, parts in group().items()}
    assert sum(each.loss * weights[each.execution] for each in stats) == pytest.approx(wanted().loss, rel=CLOSE)


def test_shared_and_expanded_say_the_same_of_each_execution() -> None:
    shared, expanded = batch.trainer(), batch.trainer(share_prefixes=False)
    one, other = (each.micro_step(micro_step([everything()])).stats for each in (shared, expanded))
    for mine, theirs in zip(one, other, strict=True):
        assert (mine.execution, mine.targets, mine.mask) == (theirs.execution, theirs.targets, theirs.mask)
        assert mine.ratio == pytest.approx(theirs.ratio, rel=CLOSE)
        assert mine.loss == pytest.approx(theirs.loss, rel=CLOSE)
        assert mine.max_delta_log_p == pytest.approx(theirs.max_delta_log_p, abs=CLOSE)
    assert distance(shared.gradient, expanded.gradient) < CLOSE


def test_ratios_measured_of_shared_rows_are_those_of_the_formulas() -> None:
    for found in batch.trainer().micro_step(micro_step([everything()], kind="measure")).measured:
        ratio = float(np.exp(found.log_ratio_sum / found.count))
        assert ratio == pytest.approx(wanted().ratio[found.execution], rel=CLOSE)


def test_a_row_holds_each_token_in_each_context_once() -> None:
    row = Row(segments=tuple(everything()))
    owners = {name: index for index, name in enumerate(GROUP)}
    tensors = row_tensors(row, owners, batch.VOCABULARY, share_prefixes=True)
    assert tensors.ids.shape[1] == len(distinct(everything()))
    paths = [path for run in tensors.runs for path in seen(run)]
    assert {tuple(tensors.ids[0, path].tolist()) for path in paths} == distinct(everything())
    assert [path[-1] for path in paths] == list(range(tensors.ids.shape[1]))
    assert tensors.positions[0].tolist() == [len(path) - 1 for path in paths]


def seen(run: Run) -> list[list[int]]:
    """For each token of a run, what it sees; in order."""
    if run.path is None or run.mask is None:
        return [list(range(run.start, stop + 1)) for stop in range(run.start, run.stop)]
    return [run.path[row == 0].tolist() for row in run.mask[0, 0]]


def test_segments_on_one_path_need_no_mask() -> None:
    nested = Row(segments=(group()["short"][0], group()["early"][0], group()["twin"][0]))
    owners = {"short": 0, "early": 1, "twin": 2}
    shared = row_tensors(nested, owners, batch.VOCABULARY, share_prefixes=True)
    assert [run.mask is None for run in shared.runs] == [True, False, False]
    apart = row_tensors(nested, owners, batch.VOCABULARY, share_prefixes=False)
    assert [(run.start, run.stop, run.mask) for run in apart.runs] == [(0, 17, None), (17, 29, None), (29, 53, None)]


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(PATHS, st.randoms(use_true_random=False))
def test_any_tree_gives_the_log_probabilities_of_its_paths(
    paths: list[list[int]], random: "np.random.Generator"
) -> None:
    model = batch.tiny_model()
    attach(model)
    flags = [[False, *(random.random() < 0.5 for _ in ids[2:]), True] for ids in paths]
    parts = [
        segment("x", leaf, 1.0, [([token], flag) for token, flag in zip(ids, chosen, strict=True)], [0.0] * len(ids))
        for leaf, (ids, chosen) in enumerate(zip(paths, flags, strict=True))
    ]
    row = row_tensors(Row(segments=tuple(parts)), {"x": 0}, batch.VOCABULARY, share_prefixes=True)
    with torch.no_grad():
        found = target_log_probs(model, row, batch.TEMPERATURE)
        alone = [batch.log_probs(model, ids)[torch.tensor(chosen)] for ids, chosen in zip(paths, flags, strict=True)]
    assert torch.allclose(found, torch.cat(alone).double(), rtol=0.0, atol=2e-5)


def test_a_model_whose_segments_would_see_each_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = batch.tiny_model()
    monkeypatch.setattr(model, "set_attn_implementation", lambda name: None)  # as architectures do that cannot
    with pytest.raises(ValueError, match="llama: its attention cannot be kept inside the segments"):
        attach(model)
