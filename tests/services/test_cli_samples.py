"""gyre samples: what is trained on, token by token, from the recorded event, and whether the tree gives it again."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gyre.core.leaves import summaries
from gyre.core.samples import difference, pieces
from gyre.core.tree import Tree
from schemas.base import floats, ints
from services.source import Source
from services.views.samples_drawing import draw
from services.views.samples_view import Sample, Samples, plain, samples_of
from tests.services.conftest import Gyre, refusal
from tests.services.small_run import ADMITTED, AGAIN, DRAWN, NEXT, RECORDS, ROOT, TARGETS, TREE, WORDS

MAIN = next(each for each in DRAWN if each.leaf == AGAIN.call)


def drawing(found: Samples, **more: Any) -> str:
    page = io.StringIO()
    draw(found, Console(file=page, width=60), **more)
    return page.getvalue()


async def test_a_sample_is_the_recorded_one_token_for_token(source: Source) -> None:
    found = plain(await samples_of(source, "x0-0"))
    assert found["same_as_fresh_draw"] is True
    assert [each["leaf"] for each in found["trajectories"]] == [each.leaf for each in DRAWN]
    for shown, recorded in zip(found["trajectories"], DRAWN, strict=True):
        tokens = shown["tokens"]
        assert [token["position"] for token in tokens] == list(range(len(tokens)))
        assert [token["id"] for token in tokens] == ints(recorded.ids)
        assert bytes(token["target"] for token in tokens) == recorded.target
        targets = [token["logprob"] for token in tokens if token["target"]]
        assert targets == [value for value in floats(recorded.logprobs) if value]


async def test_the_weights_of_all_targets_sum_to_the_executions_part_of_the_batch(source: Source) -> None:
    found = plain(await samples_of(source, "x0-0"))
    tokens = [token for each in found["trajectories"] for token in each["tokens"]]
    assert found["weight"] == 1 / (2 * 4 * TARGETS)
    assert sum(token["weight"] for token in tokens) == pytest.approx(1 / 8)
    assert {token["weight"] for token in tokens if not token["target"]} == {0.0}


async def test_a_token_says_which_call_made_it_under_which_version(source: Source) -> None:
    found = plain(await samples_of(source, "x0-0", AGAIN.call))
    (shown,) = found["trajectories"]
    made: list[tuple[str, str]] = []
    for token in shown["tokens"]:
        if (token["call"], token["source"]) not in made:
            made.append((token["call"], token["source"]))
    calls = (ROOT.call, NEXT.call, AGAIN.call)
    assert made == [(call, source) for call in calls for source in ("input", "sampled")]
    last = [token for token in shown["tokens"] if (token["call"], token["source"]) == (AGAIN.call, "sampled")]
    assert [token["version"] for token in last] == [0] * (len(last) // 2) + [1] * (len(last) - len(last) // 2)
    assert [token["logprob"] for token in last] == floats(AGAIN.logprobs)
    assert "".join(token["token"] for token in last) == "I was\x1b[31m cut."
    assert {token["logprob"] for token in shown["tokens"] if token["source"] == "input"} == {None}


async def test_the_recorded_event_alone_gives_the_samples_where_records_are_lost(source: Source) -> None:
    found = await samples_of(source, "x0-0")
    without = replace(
        found,
        samples=tuple(replace(each, pieces=pieces(Tree("x0-0"), each.trajectory)) for each in found.samples),
    )
    kept = ("position", "id", "token", "target", "weight")

    def told(samples: Samples) -> list[list[Any]]:
        trajectories = plain(samples)["trajectories"]
        return [[token[name] for name in kept] for each in trajectories for token in each["tokens"]]

    assert told(without) == told(found)
    assert {token["source"] for each in plain(without)["trajectories"] for token in each["tokens"]} == {"unknown"}


def test_samples_that_the_tree_does_not_give_are_told_apart() -> None:
    ends = summaries(TREE)
    assert difference(TREE, ends, ADMITTED, j_max=2) is None
    moved = MAIN.model_copy(update={"target": bytes(len(MAIN.target))})
    changed = tuple(moved if each is MAIN else each for each in DRAWN)
    found = difference(TREE, ends, ADMITTED.model_copy(update={"trajectories": changed}), j_max=2)
    assert found is not None
    assert found.endswith("target differ")
    fewer = difference(TREE, ends, ADMITTED, j_max=1)
    assert fewer == "a fresh draw gives 1 trajectories, recorded 2"
    miscounted = difference(TREE, ends, ADMITTED.model_copy(update={"targets": TARGETS + 1}), j_max=2)
    assert miscounted == f"a fresh draw has {TARGETS} targets, recorded L_i = {TARGETS + 1}"


async def test_without_colour_marks_tell_targets_from_the_rest(source: Source) -> None:
    found = await samples_of(source, "x0-0")
    text = drawing(found)
    assert "equal to a fresh draw from the tree with the recorded seed" in text
    assert "moves no weight: ratio 1.2500 beyond its bound in step 1" in text
    lines = [line for line in text.splitlines() if AGAIN.call in line and ".." in line]
    assert [line[0] for line in lines] == [" ", "+", "+"]
    assert "\x1b" not in text
    told = (len(ROOT.input_ids) + len(ROOT.output_ids)) // 4
    kept = MAIN.model_copy(update={"target": bytes(told) + MAIN.target[told:]})  # as if drawn after a fork of ROOT's
    shown = replace(found, samples=(Sample(kept, pieces(TREE, kept)),))
    assert [line[0] for line in drawing(shown).splitlines() if f"{ROOT.call} " in line] == [" ", "-", "-"]


async def test_a_table_has_a_line_for_each_token_asked_for(source: Source) -> None:
    found = await samples_of(source, "x0-0", AGAIN.call)
    lines = drawing(found, table=slice(2, 5)).splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["2", "3", "4"]
    assert len(drawing(found, table=slice(None)).splitlines()) - len(lines) == len(MAIN.target) - 3


async def test_a_long_sample_shows_its_ends_unless_all_is_asked_for(source: Source) -> None:
    found = await samples_of(source, "x0-0", AGAIN.call)
    (sample,) = found.samples
    long = replace(found, samples=(replace(sample, pieces=sample.pieces * 20),))
    assert "more runs" in drawing(long)
    assert "more runs" not in drawing(long, full=True)
    assert drawing(long, full=True).count("\n") > 2 * drawing(long).count("\n")


def test_samples_are_one_json_object(gyre: Gyre, small_run: Path) -> None:
    result = gyre("samples", small_run, "x0-0", "--leaf", AGAIN.call, "--json")
    assert result.exit_code == 0
    (shown,) = json.loads(result.stdout)["trajectories"]
    assert [token["id"] for token in shown["tokens"]] == ints(MAIN.ids)
    assert WORDS.decode(ints(MAIN.ids)) == "".join(token["token"] for token in shown["tokens"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x9-9",), "execution x9-9: run r knows none"),
        (("x0-1",), "execution x0-1: no samples, it has no valid reward; see `gyre tree`"),
        (("x0-2",), "execution x0-2: no samples, it is not closed yet"),
        (("e0-0",), "execution e0-0: no samples, it is a held-out episode"),
        (("x0-0", "--leaf", RECORDS[0].call), "--leaf x0-0-c0: not admitted; admitted are"),
    ],
)
def test_what_has_no_samples_is_one_line(gyre: Gyre, small_run: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(gyre("samples", small_run, *arguments))


def test_a_range_that_is_none_is_wrong_usage(gyre: Gyre, small_run: Path) -> None:
    assert refusal(gyre("samples", small_run, "x0-0", "--tokens", "first"), 2).startswith(
        "--tokens first: give positions"
    )
    assert refusal(gyre("samples", small_run, "x0-0", "--tokens", "60:5"), 2) == (
        "--tokens 60:5: there is no token between; give the lower position first"
    )
