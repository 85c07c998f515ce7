"""Grades the workspace (the current directory) by tests that the agent never saw: `python3 -I grade.py`.

Beside this file lie `expected.json` (which tests count, and how), `lay/` (files laid over the work before the tests
run) and `run_tests.py`. What the agent wrote is taken for hostile:

- the tests run in a copy of the workspace in which the hidden tests' own files replace whatever had their names;
- files that Python or a test runner would run by themselves (sitecustomize.py, *.pth, conftest.py, pytest.ini, ...)
  are removed, unless they are the task's own; Python runs isolated, without plug-ins;
- only named tests count, and one that is not reported has failed;
- results come by a pipe, each line marked with a word that is drawn anew and told before any of the agent's code runs;
- two tests that must fail run among them: where one passes or is missing, nothing of that run counts;
- all that the tests started is killed before the reward is written.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENDINGS = (".pth", ".egg-link", ".pyc")
MOST_BYTES = 16 << 20  # of results
SUBREAPER = 36  # prctl: orphans of our children become ours
CANARY = """
import unittest


class Canary(unittest.TestCase):
    def test_must_fail(self):
        self.fail()


def test_must_fail():
    assert False
"""
CANARIES = {"unittest": ("Canary::test_must_fail",), "pytest": ("Canary::test_must_fail", "test_must_fail")}


def main() -> int:
    """Grade and write the reward; 0 unless the tests themselves are at fault."""
    wanted = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
    adopt_orphans()
    root = Path(tempfile.mkdtemp(prefix="graded-"))
    try:
        work = root / "work"
        copy_work(Path.cwd(), work, set(wanted["guarded"]))
        for name in wanted["remove"]:
            remove(work / name)
        lay_over(HERE / "lay", work)
        passed, skipped, notes = run_all(wanted, root, work)
    finally:
        kill_descendants()
        shutil.rmtree(root, ignore_errors=True)
    score, said = judged(wanted, passed, skipped)
    reward = Path(os.environ["REWARD_FILE"])
    reward.write_text(f"{score:.6f}\n", encoding="utf-8")
    print("; ".join([said, *notes]))
    return 0


def judged(wanted: dict[str, Any], passed: set[str], skipped: set[str]) -> tuple[float, str]:
    """(score in [0, 1], one line): the share of the expected tests that passed, or whether all did."""
    if wanted["count"]:
        found = min(len(passed), wanted["count"])
        return found / wanted["count"], f"{found} of {wanted['count']} tests pass"
    target, keep = wanted["must_pass"], wanted["keep_passing"]
    solved = sum(name in passed for name in target)
    kept = sum(name in passed or name in skipped for name in keep)
    said = f"{solved} of {len(target)} wanted and {kept} of {len(keep)} other tests pass"
    if solved == len(target) and kept == len(keep):
        return 1.0, said
    share = solved / len(target) * (kept / len(keep) if keep else 1.0)
    return (share if wanted["scoring"] == "share" else 0.0), said


def copy_work(source: Path, target: Path, guarded: set[str]) -> None:
    """The work without its repository and without what would run by itself."""
    for folder, folders, files in os.walk(source):  # whatever modes the agent gave to what is ours now
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode | (0o700 if name in folders else 0o400))

    def unwanted(folder: str, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name in guarded
            or name.endswith(ENDINGS)
            or name in (".git", "__pycache__")
            or (name.endswith((".egg-info", ".dist-info")))
            or not (os.path.isfile(os.path.join(folder, name)) or os.path.isdir(os.path.join(folder, name)))
        }

    shutil.copytree(source, target, symlinks=True, ignore=unwanted)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def lay_over(source: Path, target: Path) -> None:
    """Copy the task's files over the work; never through a link that the agent left."""
    for path in sorted(source.rglob("*")):
        inside = target / path.relative_to(source)
        if inside.is_symlink() or (inside.exists() and inside.is_dir() != path.is_dir()):
            remove(inside)
        if path.is_dir():
            inside.mkdir(exist_ok=True)
        else:
            if inside.exists():
                inside.unlink()
            shutil.copyfile(path, inside)
            inside.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def run_all(wanted: dict[str, Any], root: Path, work: Path) -> tuple[set[str], set[str], list[str]]:
    """(tests that passed, tests that were skipped, remarks), each file of tests in a process of its own."""
    passed: set[str] = set()
    skipped: set[str] = set()
    notes: list[str] = []
    for file in wanted["files"]:
        outcomes, note = run_file(wanted, root, work, file)
        passed |= {name for name, outcome in outcomes.items() if outcome == "passed"}
        skipped |= {name for name, outcome in outcomes.items() if outcome == "skipped"}
        notes += [f"{file}: {note}"] if note else []
    return passed - skipped, skipped, notes


def run_file(wanted: dict[str, Any], root: Path, work: Path, file: str) -> tuple[dict[str, str], str]:
    """({test: outcome}, a remark) of one file of tests."""
    mark = secrets.token_hex(16)
    canaries = [str(Path(file).parent / f"test_{secrets.token_hex(8)}.py") for _ in range(2)]
    for name in canaries:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(CANARY, encoding="utf-8")
    config = work / wanted["config"] if wanted["config"] else root / "pytest.ini"
    if not wanted["config"]:
        config.write_text("[pytest]\n", encoding="utf-8")
    words = [wanted["runner"], str(work), str(config), canaries[0], file, canaries[1]]
    lines, late = listen(
        [sys.executable, "-I", "-B", str(HERE / "run_tests.py"), *words], work, mark, wanted["seconds"]
    )
    for name in canaries:
        remove(work / name)
    outcomes: dict[str, str] = {}
    for line in lines:
        said, _, rest = line.partition(" ")
        if said == mark:
            outcome, _, name = rest.partition(" ")
            outcomes[json.loads(name)] = outcome
    control = [[f"{name}::{test}" for test in CANARIES[wanted["runner"]]] for name in canaries]
    return counted(outcomes, control, file, wanted["seconds"] if late else 0)


def counted(outcomes: dict[str, str], control: list[list[str]], file: str, late: float) -> tuple[dict[str, str], str]:
    """What of a file's outcomes counts: only its own tests, and only where tests that must fail have failed."""
    before, after = ({outcomes.get(name) for name in names} for names in control)
    own = {name: outcome for name, outcome in outcomes.items() if name.partition("::")[0] == file}
    if late:  # those behind it had no turn; those before it were tested as they should be
        ended = f"ended after {late:g} s"
        return (own, ended) if before == {"failed"} and after == {None} else ({}, ended)
    if before | after != {"failed"}:
        return {}, "its run ended early or was tampered with, so none of it counts"
    return own, ""


def listen(command: list[str], work: Path, mark: str, seconds: float) -> tuple[list[str], bool]:
    """(what the tests said on their pipe, whether they were ended for being late)."""
    ear, mouth = os.pipe()
    environment = {
        "PATH": os.environ.get("PATH", os.defpath), "HOME": str(work.parent), "TMPDIR": str(work.parent),
        "LANG": "C.UTF-8", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "RESULTS": str(mouth),
    }  # fmt: skip
    for name in ("PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH", "CONDA_PREFIX", "VIRTUAL_ENV"):
        if name in os.environ:
            environment[name] = os.environ[name]
    process = subprocess.Popen(
        command, cwd=work, env=environment, stdin=subprocess.PIPE, stdout=sys.stderr, pass_fds=(mouth,),
        start_new_session=True,
    )  # fmt: skip
    os.close(mouth)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(mark.encode())
        process.stdin.close()
    body, late = drained(ear, process, time.monotonic() + seconds)
    os.close(ear)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return body.decode(errors="replace").splitlines(), late


def drained(ear: int, process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bool]:
    """All that comes until the process has ended, whoever else holds the other end of the pipe."""
    body = b""
    with selectors.DefaultSelector() as selector:
        selector.register(ear, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            if selector.select(0 if ended else min(0.05, max(0.0, deadline - time.monotonic()))):
                chunk = os.read(ear, 1 << 16)
                body += chunk
                if len(body) > MOST_BYTES:
                    return b"", False
                if not chunk:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))
                    return body, process.poll() is None
            elif ended:
                return body, False
            if not ended and time.monotonic() > deadline:
                return body, True


def adopt_orphans() -> None:
    """Whatever the tests start stays a descendant of ours, however it detaches itself."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kill children until there are none: what they leave becomes ours and is next."""
    for _ in range(1000):
        children = own_children()
        if not children:
            return
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def own_children() -> list[int]:
    """Process ids of our children."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                if parent == os.getpid():
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:  # noqa: BLE001 - whatever it is, it is no verdict
        traceback.print_exc()
        sys.exit(125)
