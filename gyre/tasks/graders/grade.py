"""Grades the workspace (the current directory) by tests that the agent never saw: `python3 -I grade.py`.

Beside this file lie `expected.json` (which tests count, and how), `lay/` (files laid over the work before the tests
run), `run_tests.py`, `twins.py` and `children.py`. What the agent wrote is taken for hostile:

- the tests run in a copy of the workspace in which the hidden tests' own files replace whatever had their names;
- files that Python or a test runner would run by themselves (sitecustomize.py, *.pth, conftest.py, pytest.ini, ...)
  are removed, unless they are the task's own; Python runs isolated, without plug-ins;
- only named tests count, and one that is not reported has failed;
- results come by a pipe, each line marked with a word that is drawn anew and told before any of the agent's code runs;
- two tests that must fail run among them: where one passes or is missing, nothing of that run counts;
- every test has a twin that asks for something else (`twins.py`), run in another copy of the work, before or after: a
  test that passes together with its twin proves nothing and does not count;
- all that the tests started is killed before the reward is written.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # the tests' folder stays as it is
sys.path.insert(0, str(HERE))
children: Any = importlib.import_module("children")
twins: Any = importlib.import_module("twins")
ENDINGS = (".pth", ".egg-link", ".pyc")
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
    children.prepare()
    laid = Laid(wanted)
    root = Path(tempfile.mkdtemp(prefix="graded-"))
    found: dict[bool, tuple[dict[str, str], list[str]]] = {False: ({}, []), True: ({}, [])}
    order = [False, True] if laid.twins else [False]
    secrets.SystemRandom().shuffle(order)  # so that being first or second tells the work nothing
    try:
        for twin in order:
            found[twin] = run_all(wanted, root, laid, twin=twin)
    finally:
        children.kill_descendants()
        shutil.rmtree(root, ignore_errors=True)
    passed, skipped, unfounded = laid.proven(found[False][0], found[True][0])
    score, said = judged(wanted, passed, skipped)
    reward = Path(os.environ["REWARD_FILE"])
    reward.write_text(f"{score:.6f}\n", encoding="utf-8")
    notes = [f"{unfounded} more passed whatever they asked for, so they don't count"] if unfounded else []
    print("; ".join([said, *notes, *found[False][1]]))
    return 0


class Laid:
    """The task's own files, which are laid over the work, and the twins of its tests."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        """Read them."""
        self.top = HERE / "lay"
        self.files = set(wanted["files"])
        self.named = {*wanted["must_pass"], *wanted["keep_passing"]}
        self.twins: dict[str, Any] = {}
        self.skips = False
        for path in sorted(self.top.rglob("*.py")):
            name, text = str(path.relative_to(self.top)), path.read_text(encoding="utf-8", errors="replace")
            self.skips = self.skips or "skip" in text.lower()
            if wanted["twins"] and sys.version_info >= (3, 8):
                self.twins[name] = twins.Twin(text, methods_only=name not in self.files)

    def over(self, work: Path, *, twin: bool) -> None:
        """Lay them over the work: as they are, or with the tests' twins."""
        lay_over(self.top, work)
        for name, made in self.twins.items() if twin else ():
            (work / name).write_text(made.text, encoding="utf-8")

    def proven(self, told: dict[str, str], turned: dict[str, str]) -> tuple[set[str], set[str], int]:
        """(tests that passed, tests that were skipped, how many more passed as their twins did)."""
        passed = {name for name, outcome in told.items() if outcome == "passed"}
        skipped = {name for name, outcome in told.items() if outcome == "skipped" and self.skips}
        good = {name for name in passed if not self.twins or self._proven(name, turned)}
        return good, skipped, len(passed - good)

    def _proven(self, name: str, turned: dict[str, str]) -> bool:
        """Whether a test that passed has a twin that did not, or can have none."""
        file, function = name.partition("::")[0], name.partition("[")[0].rpartition("::")[2]
        made = self.twins[file]
        # Tests may be inherited from a file that is no file of tests itself.
        several = [made, *(each for other, each in self.twins.items() if other not in self.files)]
        known = {each for some in several for each in some.turned}
        if function not in known and any(function in some.exempt for some in several):
            return True
        if any(function == each or function.startswith(f"{each}_") for each in known):  # `parameterized` adds to names
            return turned.get(name) == "failed"
        return bool(made.makes_more) or name in self.named


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


def run_all(wanted: dict[str, Any], root: Path, laid: Laid, *, twin: bool) -> tuple[dict[str, str], list[str]]:
    """({test: outcome}, remarks): each file in a process of its own, in a copy of the work that is gone afterwards."""
    place = root / secrets.token_hex(8)
    work = place / "work"
    copy_work(Path.cwd(), work, set(wanted["guarded"]))
    for name in wanted["remove"]:
        remove(work / name)
    laid.over(work, twin=twin)
    outcomes: dict[str, str] = {}
    notes: list[str] = []
    for file in wanted["files"]:
        found, note = run_file(wanted, place, work, file)
        outcomes.update(found)
        notes += [f"{file}: {note}"] if note else []
    shutil.rmtree(place, ignore_errors=True)
    return outcomes, notes


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
    lines, late = children.listen(
        [sys.executable, "-I", "-B", str(HERE / "run_tests.py"), *words], work, mark, wanted["seconds"]
    )
    children.kill_descendants()  # what this file's tests left cannot meddle with the next one's
    if mark not in lines:
        raise RuntimeError(f"{file}: its run did not begin, which is no fault of the work")
    for name in canaries:
        remove(work / name)
    outcomes: dict[str, str] = {}
    for line in lines:
        said, _, rest = line.partition(" ")
        if said == mark and rest:
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:  # noqa: BLE001 - whatever it is, it is no verdict
        traceback.print_exc()
        sys.exit(125)
