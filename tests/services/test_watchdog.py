"""A loop that stands still ends its process, wherever it stands; one that turns, or has ended in order, goes on."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, ctypes, time
from services.watchdog import watched

def stuck():
    {stuck}

async def main():
    async with watched({seconds}):
        {inside}
    {after}

asyncio.run(main())
print("well")
"""


def ran(seconds: float, inside: str, stuck: str = "pass", after: str = "pass") -> "subprocess.CompletedProcess[str]":
    program = PROGRAM.format(seconds=seconds, inside=inside, stuck=stuck, after=after)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("stuck", ["time.sleep(300)", "ctypes.PyDLL(None).sleep(300)"], ids=["python", "compiled"])
def test_a_process_that_hangs_ends_and_says_where(stuck: str) -> None:
    done = ran(0.5, "await asyncio.sleep(0); stuck()", stuck)
    assert done.returncode == 1
    assert "in stuck" in done.stderr
    assert "well" not in done.stdout


def test_a_loop_that_turns_goes_on() -> None:
    done = ran(60, "for _ in range(100): await asyncio.sleep(0.001)")
    assert (done.returncode, done.stdout) == (0, "well\n")


def test_no_alarm_is_left_behind() -> None:
    done = ran(0.5, "await asyncio.sleep(0)", after="time.sleep(1.5)")
    assert (done.returncode, done.stdout) == (0, "well\n")
