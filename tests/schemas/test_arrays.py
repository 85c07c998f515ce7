"""A record whose arrays do not go together tells of other tokens than were sampled: it is none, whoever reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.upcast import Malformed, load

GOLDEN = Path(__file__).parent / "golden"
FIVE, THREE = "AAAAAAAAAAAAAAAAAAAAAAAAAAA=", "AAAA"
"""Of five tokens, where the golden record has four; and three bytes, which are none."""


def changed(change: dict[str, Any]) -> bytes:
    commit = json.loads((GOLDEN / "ModelCallRecorded.v1.json").read_bytes())
    commit["events"][0] |= change
    return json.dumps(commit).encode()


@pytest.mark.parametrize("whole", [{}, {"output_ids": "", "logprobs": "", "versions": []}])
def test_a_record_of_whole_tokens_loads(whole: dict[str, Any]) -> None:
    assert len(load(changed(whole)).events) == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"input_ids": THREE},
        {"output_ids": FIVE},
        {"output_ids": THREE, "logprobs": THREE},
        {"logprobs": FIVE},
        {"logprobs": ""},
        {"versions": []},
        {"versions": [{"version": 2, "tokens": 5}]},
    ],
    ids=str,
)
def test_a_record_has_one_log_probability_and_one_version_an_output(broken: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="4 a token, equally many for outputs"):
        load(changed(broken))
