"""`gyre replay RUN --step`: a walk event by event, by lines of input."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from gyre.core.causes import EventId
from services.cli.app import app
from services.exits import EXIT_INTERRUPTED
from services.lines import Lines
from services.source import Source, open_source
from services.states import state_at
from services.views.step_keys import KEYS, Steps
from services.views.stepping import KEPT_EVERY, Walker
from tests.services.recorded import SMALL


@pytest.fixture
async def small() -> AsyncIterator[Source]:
    async with open_source(str(SMALL), Path()) as source:
        yield source


async def shown(walker: Walker, *keys: str) -> list[str]:
    """What is shown after the greeting for these lines."""
    out, lines = io.StringIO(), iter([*(f"{key}\n" for key in keys), ""])

    async def read() -> str:
        return next(lines)

    await Steps(walker, Console(file=out, width=200), read).run()
    return out.getvalue().splitlines()[1 + len(KEYS.splitlines()) :]


async def test_the_walk_goes_on_event_by_event_and_back(small: Source) -> None:
    walker = await Walker.begin(small, "counters")
    places = [line.split()[0] for line in await shown(walker, "n", "", "n 2", "b", "b 2", "b", "b") if "+" in line]
    assert places == ["1.0", "2.0", "4.0", "3.0", "1.0", "1.0", "1.0"]
    assert await walker.back() is False
    assert "the log begins here" in await shown(walker, "b")
    assert "the log ends here" in await shown(walker, "j 780", "n")


async def test_a_commit_of_several_events_is_walked_through_one_by_one(small: Source) -> None:
    walker = await Walker.begin(small, "roles")
    await walker.to(EventId(489, 1))
    assert [await walker.next() and str(walker.place) for _ in range(3)] == ["489.2", "489.3", "490.0"]
    assert [await walker.back() and str(walker.place) for _ in range(2)] == ["489.3", "489.2"]


@pytest.mark.parametrize("name", ["scheduler", "groups"])
async def test_wherever_one_comes_from_the_state_is_that_of_the_place(small: Source, name: str) -> None:
    walker = await Walker.begin(small, name)
    places = (3, 2 * KEPT_EVERY + 5, 40, 41, 2 * KEPT_EVERY + 4, 2 * KEPT_EVERY + 5)
    for sequence in places:
        await walker.to(EventId(sequence))
        stored = await small.ev.get(sequence)
        assert stored is not None
        assert stored.commit is not None
        if len(stored.commit.events) == 1:
            assert walker.state == await state_at(small, name, sequence)


async def test_what_an_event_changed_is_shown_beside_it_and_whole_by_key(small: Source) -> None:
    walker = await Walker.begin(small, "counters")
    lines = await shown(walker, "e ExecutionDispatched", "c")
    assert "dispatched: 0 -> 1" in lines[1]
    assert "dispatched: 0 -> 1" in lines
    assert "waterlevel: 0 -> 1" in lines
    assert "nothing changed in counters" in await shown(walker, "e recordssealed", "c")


async def test_one_goes_to_times_types_and_executions(small: Source) -> None:
    walker = await Walker.begin(small, "counters")
    lines = await shown(walker, "t step:1", "e OptimizerStepped", "x x12-1", "x cell 1", "t +1ms")
    kinds = [line.split()[4] for line in lines if line[:9].strip().replace(".", "").isdecimal()]
    assert kinds[:2] == ["OptimizerStepped", "OptimizerStepped"]
    assert any("execution=x12-1" in line for line in lines)
    assert any("cell=1" in line for line in lines)
    assert kinds[-1] == "RunStarted"


async def test_another_state_is_taken_along(small: Source) -> None:
    walker = await Walker.begin(small, "counters")
    text = "\n".join(await shown(walker, "t step:1", "s roles"))
    assert json.loads(text[text.index("\n{") :]) == {"0": "train", "1": "rollout", "2": "rollout"}
    assert walker.name == "roles"
    assert str(walker.place) == "435.0"


async def test_what_cannot_be_done_is_one_line_and_the_walk_goes_on(small: Source) -> None:
    walker = await Walker.begin(small, "counters")
    lines = await shown(
        walker, "v", "z", "j 99999", "j x", "t banana", "e Nothing", "x nobody", "s mood", "n many", "b", "n"
    )
    assert lines[0] == "before the first event; n goes on"
    words = ("no such key", "ends at", "give SEQUENCE", "moment banana", "no event of type", "no event about nobody")
    assert all(word in line for word, line in zip(words, lines[1:], strict=False))
    assert "one of progress" in lines[7]
    assert "such as 10" in lines[8]
    assert any(line.startswith("      1.0") for line in lines[9:])


def walk(*keys: str) -> Result:
    return CliRunner().invoke(app, ["replay", str(SMALL), "--step"], input="\n".join(keys))


def test_the_command_describes_its_keys_and_obeys_its_input() -> None:
    result = walk("j 435", "v", "w", "?", "q", "n")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("quit") == 2
    assert "state scheduler" in result.stdout
    assert '"type": "OptimizerStepped"' in result.stdout
    assert "=>" in result.stdout
    assert " > " not in result.stdout.replace("-> ", "")
    assert "1.0 " not in result.stdout.splitlines()[-1]


def begun(stdin: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "services.cli", "replay", str(SMALL), "--step"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def test_a_person_at_a_terminal_is_prompted_and_may_leave_by_an_interrupt() -> None:
    ours, theirs = os.openpty()
    with begun(theirs) as process:
        os.close(theirs)
        os.write(ours, b"j 435\nn\n")
        assert process.stdout is not None
        assert any("435.1" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == EXIT_INTERRUPTED
    os.close(ours)


async def test_a_file_and_a_pipe_are_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("j 435\nn")
    out, into = os.pipe()
    os.write(into, b"j 435\nn")
    os.close(into)
    for given in (keys.open(), os.fdopen(out)):
        with given:
            monkeypatch.setattr(sys, "stdin", given)
            read = Lines()
            assert [await read() for _ in range(3)] == ["j 435\n", "n", ""]


def test_the_end_of_the_input_ends_the_walk_and_it_may_begin_at_a_moment() -> None:
    result = CliRunner().invoke(
        app, ["replay", str(SMALL), "--step", "--to", "step:2", "--state", "roles"], input="n\n"
    )
    assert result.exit_code == 0, result.output
    assert "  459.0" in result.stdout
