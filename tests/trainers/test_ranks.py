"""The processes of a replica's ranks, whatever these are."""

import pytest

from gyre.trainers import ranks
from gyre.trainers.ranks import RankLost, RankProcesses


def test_a_rank_that_hangs_up_and_does_not_end_is_killed_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_END_SECONDS", 0.2)
    with pytest.raises(RankLost, match=r"rank 0 did not end within 0\.2 s of hanging up, and was killed: see what"):
        RankProcesses("tests.trainers.mute", [None], 1)
