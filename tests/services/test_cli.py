"""The command line: what people can mend is one line and an exit code, and a refused start leaves nothing behind."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bus.credentials import server_of
from bus.jetstream import Bus
from bus.log import Stored
from gyre.models.load import NANO
from services import exits
from services.cli.app import app
from services.cli.log import lines_of
from services.exits import EXIT_UNHEARD
from services.place import Note
from services.views.terminal import wide

Gyre = Callable[..., Result]
ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "data" / "runs" / "small.jsonl.zst"
QUICK = (sys.executable, "-m", "services.cli")


def _below(command: Any, name: str = "") -> Iterator[str]:
    yield name
    for each, inner in getattr(command, "commands", {}).items():
        yield from _below(inner, f"{name} {each}".strip())


COMMANDS = tuple(_below(typer.main.get_command(app)))


@pytest.fixture
def gyre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gyre:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def refusal(result: Result, code: int = 1) -> str:
    """The one line of a refused command."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    line = result.stderr.rstrip("\n")
    assert "\n" not in line
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_comes_with_an_example(gyre: Gyre, command: str) -> None:
    result = gyre(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: gyre {command}".strip() in result.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = [\n", "not readable as TOML"),
        ("[run]\nstepz = 1\n", "run.stepz = 1: unknown key; did you mean run.steps?"),
        ("[admission]\nj_max = 0\n", "admission.j_max = 0"),
        ("[schedule]\nrho_min = 0\n", "schedule.rho_min = 0"),
        ("[schedule]\nrho_min = 1.5\n", "schedule.rho_min = 1.5"),
        ("[cells]\ncount = 0\n", "cells.count = 0"),
        ("[rollout]\ncontext_tokens = 4096\n[packing]\nrow_tokens = 4096\n", "exceeds the context of model nano"),
        ('[model]\npath = "nowhere"\n', "model = 'nowhere': unknown"),
        ('[tasks]\ntrain = "bare"\n', "tests/test.sh is missing"),
        ('[tasks]\nheldout = "absent"\n', "no such folder of tasks"),
    ],
)
@pytest.mark.parametrize("command", ["train", "check"])
def test_a_configuration_that_cannot_be_kept_is_refused_before_anything_is_written(
    gyre: Gyre, tmp_path: Path, command: str, text: str, words: str
) -> None:
    bare = tmp_path / "bare" / "a-task"
    bare.mkdir(parents=True)
    (bare / "task.toml").write_text('version = "1.0"\n')
    (bare / "instruction.md").write_text("Do it.\n")
    (tmp_path / "run.toml").write_text(text)
    assert words in refusal(gyre(command, "run.toml"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "run.toml"]


@pytest.mark.parametrize("override", ["nonsense", "=1", "run.steps=", "run.steps=many", "run=3", "a..b=1"])
def test_an_override_that_says_nothing_is_refused(gyre: Gyre, tmp_path: Path, override: str) -> None:
    refusal(gyre("train", "/dev/null", "--set", override))
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_takes_its_folder_along(gyre: Gyre, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (model / name).write_bytes((NANO / name).read_bytes())
    (model / "model.safetensors").write_bytes(b"damaged")
    line = refusal(gyre("train", "/dev/null", "--set", f"model.path={model}", "--set", "tasks.train=words:2:train"))
    assert str(model) in line
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "nobody"),
        ("replay", "nobody"),
        ("replay", "nobody", "--verify"),
        ("replay", "nobody", "--step"),
        ("replay", "nobody", "--why", "1"),
        ("restep", "nobody", "1"),
        ("diff", "nobody", "nobody"),
        ("tree", "nobody", "x0-0"),
        ("regrade", "nobody"),
        ("assess", "nobody", "x0-0"),
        ("resume", "nobody"),
        ("eval", "nobody"),
        ("log", "tail", "nobody"),
        ("log", "show", "nobody", "1"),
        ("log", "stats", "nobody"),
        ("log", "export", "nobody", "out.jsonl.zst"),
        ("log", "import", "nobody.jsonl.zst"),
    ],
    ids=" ".join,
)
def test_a_run_that_is_not_there_is_one_line(gyre: Gyre, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert "nobody" in refusal(gyre(*arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("replay",), ("log", "import"), ("log", "stats"), ("status",)], ids=" ".join)
def test_a_damaged_archive_is_one_line(gyre: Gyre, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "bad.jsonl.zst").write_bytes(b"no archive at all")
    assert "bad.jsonl.zst" in refusal(gyre(*command, "bad.jsonl.zst"))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl.zst"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "r", "--state", "mood"), "one of progress, scheduler"),
        (("serve", "waiter", "--folder", "r"), "no such service"),
        (("serve", "proxy", "--cell", "0", "--folder", "r"), "--cell 0: give it"),
    ],
)
def test_wrong_words_are_wrong_usage(gyre: Gyre, arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(gyre(*arguments), code=2)


@pytest.mark.parametrize("command", [("resume",), ("log", "export"), ("regrade",), ("users",)], ids=" ".join)
def test_an_archive_where_a_run_is_needed_says_how_it_becomes_one(
    gyre: Gyre, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "r.jsonl.zst").write_bytes(SMALL.read_bytes())
    line = refusal(gyre(*command, "r.jsonl.zst", *(["again.jsonl.zst"] if command[-1] == "export" else [])))
    assert line == "r.jsonl.zst: an archive, which is only read; `gyre log import r.jsonl.zst` makes a run of it"


@pytest.mark.parametrize("command", [("status",), ("resume",), ("users",), ("log", "tail")], ids=" ".join)
def test_whoever_gives_a_path_is_told_the_name(gyre: Gyre, tmp_path: Path, command: tuple[str, ...]) -> None:
    for folder in ("runs", "others"):
        (tmp_path / folder / "mine").mkdir(parents=True)
        (tmp_path / folder / "mine/run.json").touch()
    assert refusal(gyre(*command, "runs/mine")).endswith("in runs; did you mean `mine`?")
    assert refusal(gyre(*command, "others/mine/")).endswith(f"did you mean `mine --runs {tmp_path / 'others'}`?")


def test_a_folder_that_a_shell_would_split_is_quoted_where_a_name_is_told(gyre: Gyre, tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine/run.json").touch()
    assert refusal(gyre("status", "my runs/mine")).endswith(f"did you mean `mine --runs '{folder}'`?")


def test_a_run_without_its_archive_is_not_called_unfinished(gyre: Gyre, tmp_path: Path) -> None:
    (tmp_path / "runs/moved").mkdir(parents=True)
    (tmp_path / "runs/moved/run.json").touch()
    shown = gyre("runs").stdout
    assert "archive" in shown
    assert "finished" not in shown


def test_a_folder_for_a_configuration_is_refused_in_a_sentence(gyre: Gyre, tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    for command in ("check", "train"):
        assert refusal(gyre(command, "examples")) == "examples: file: is a folder; give the path of a TOML file"


def test_the_tail_of_a_log_counts_what_is_packed(gyre: Gyre) -> None:
    shown = gyre("log", "tail", str(SMALL), "-n", "1000000").stdout
    (scored, *_) = [line for line in shown.splitlines() if "EvaluationScored" in line]
    assert re.search(r" scores=\d+ bytes ", scored)


def test_no_runs_are_no_error(gyre: Gyre) -> None:
    assert json.loads(gyre("runs", "--json").stdout) == []


def test_runs_of_no_folder_are_refused(gyre: Gyre, tmp_path: Path) -> None:
    assert refusal(gyre("runs", "--runs", "nope")) == "--runs nope: no such folder"
    (tmp_path / "runs").touch()
    assert refusal(gyre("runs", "--json")) == "--runs runs: no such folder"


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("folder", "folder: is a folder; name a file in it"),
        ("file/p", "file/p: no such folder; make it, or write elsewhere"),
        ("mistyped/p", "mistyped/p: no such folder; make it, or write elsewhere"),
        ("/nonexistent/deep/p", "/nonexistent/deep/p: no such folder; make it, or write elsewhere"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [("export-page", str(SMALL), "-o"), ("query", "staleness", str(SMALL), "--out"), ("log", "export", "mine")],
    ids=lambda words: words[0],
)
def test_what_cannot_be_written_is_found_out_before_the_work(
    gyre: Gyre, tmp_path: Path, command: tuple[str, ...], out: str, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/run.json").write_text("damaged: it is not even looked at")
    (tmp_path / "file").touch()
    assert refusal(gyre(*command, out)) == why
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder", "runs"]


def test_a_file_of_runs_is_refused_in_a_sentence(gyre: Gyre, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("train", "/dev/null", "--set", "run.folder=file", "--set", "tasks.train=words:2:train")
    line = refusal(gyre(*words))
    assert line.startswith(f"folder of runs {tmp_path / 'file'}: no run can be kept there (")
    assert "Errno" not in line


@pytest.mark.parametrize(
    ("arguments", "code"), [(["runs"], 0), (["status", "nobody"], 1), (["train"], 2), (["fly"], 2), (["--fly"], 2)]
)
def test_the_process_ends_with_the_exit_code_of_its_kind(tmp_path: Path, arguments: list[str], code: int) -> None:
    command = [sys.executable, "-m", "services.cli", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr


def test_a_page_of_a_run_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [*QUICK, "export-page", "nobody", "-o", "page.html"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(
    "arguments", [["doctor", "--list"], ["status", str(SMALL)], ["runs", "--json"], ["tree", str(SMALL), "x0-0"]]
)
def test_output_that_nobody_hears_at_all_ends_the_same_way(tmp_path: Path, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([*QUICK, *arguments], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (EXIT_UNHEARD, b"")


def test_tables_for_a_pipe_are_whole_and_for_a_terminal_as_wide_as_that(
    gyre: Gyre, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    drawn = gyre("diff", f"{SMALL}@step:1", f"{SMALL}@step:3").stdout
    assert "staleness A/B" in drawn
    assert "…" not in drawn
    monkeypatch.setenv("COLUMNS", "60")
    assert wide().width == 60


def test_what_no_model_accepts_is_json_too_where_json_is_asked_for() -> None:
    stored = Stored(3, "ev.r.control.run", None, "not JSON")
    (line,) = lines_of(stored, as_json=True)
    assert json.loads(line) == {"sequence": 3, "subject": "ev.r.control.run", "malformed": "not JSON"}
    assert list(lines_of(stored, as_json=False)) == ["      3  malformed: not JSON"]


def test_every_exit_code_is_in_the_table_of_the_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    told = {int(code) for code in re.findall(r"^\| ([0-9]+) \| ", page, re.MULTILINE)}
    assert {value for name, value in vars(exits).items() if name.startswith("EXIT_")} - told == set()


def test_output_that_nobody_reads_on_is_no_error() -> None:
    command = (*QUICK, "log", "tail", str(SMALL), "-n", "800")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == EXIT_UNHEARD


async def test_the_tail_of_an_empty_log_is_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    server = await asyncio.to_thread(server_of(folder, "one", "laptop").start)
    try:
        bus = await Bus.connect(server.url, "one", "control", "one", folder, create=True, sync="laptop")
        await bus.close()
        Note("one", server.url, "laptop").write(folder)
        command = (*QUICK, "log", "tail", "one", "--runs", str(tmp_path))
        tail = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            async with asyncio.timeout(60):
                assert await tail.communicate() == (b"", None)
        finally:
            if tail.returncode is None:
                tail.kill()
                await tail.wait()
    finally:
        await asyncio.to_thread(server.stop)


INTERRUPTED = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "services.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from services.entry import main
main()
"""


def test_an_interrupt_while_the_command_is_read_is_no_stack_trace() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (exits.EXIT_INTERRUPTED, "", "stopped\n")
