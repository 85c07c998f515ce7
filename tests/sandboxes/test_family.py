"""What a process has started, found while its threads come and go."""

import os
import subprocess
from pathlib import Path

import pytest

from gyre.sandboxes.family import children


def test_a_thread_that_ends_meanwhile_hides_no_child_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir
    ended = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1  # a number that no thread has

    def with_an_ended_one(path: Path) -> list[str]:
        return [str(ended), *listdir(path)]

    monkeypatch.setattr("gyre.sandboxes.family.os.listdir", with_an_ended_one)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in children(os.getpid())
        child.kill()
