"""Grades the workspace (the current directory) by tests that the agent never saw: `python3 -I grade.py`.

Beside this file lie `expected.json` (which tests count, and how), `lay/` (files laid over the work before the tests
run) and the modules that it is made of. What the agent wrote is taken for hostile:

- the tests run in a copy of the workspace in which the hidden tests' own files replace whatever had their names;
- files that Python or a test runner would run by themselves (sitecustomize.py, *.pth, conftest.py, pytest.ini, ...)
  are removed, unless they are the task's own; Python runs isolated, without plug-ins;
- only named tests count, and one that is not reported has failed; where only their number is known, no test counts more
  often than its file has it, where that says so for certain (`certain.py`);
- results come by a pipe, each line marked with a word that is drawn anew and told before any of the agent's code runs;
- two tests that must fail run among them: where one passes or is missing, nothing of that run counts;
- every test has a twin that asks for something else (`twins.py`) and runs in another copy of the work: a test that
  passes together with its twin proves nothing and does not count. Which of the two copies has the test and which its
  twin is drawn, where it can be for each test by itself: work that passes all of one copy has not guessed all of them;
- all that the tests started is killed before the reward is written;
- what cannot be done once the work was let in counts against it, and is no verdict before: it cannot be left out by
  making its grader fail.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import sys
import tempfile
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # the tests' folder stays as it is
sys.path.insert(0, str(HERE))
certain: Any = importlib.import_module("certain")
children: Any = importlib.import_module("children")
files: Any = importlib.import_module("files")
laid_over: Any = importlib.import_module("laid")
NO_VERDICT = 125  # exit code
MOST_SAID = 500
SPARE_BYTES = 64 << 20
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
    reward = reward_place()
    try:
        score, said = graded(json.loads((HERE / "expected.json").read_text(encoding="utf-8")))
        write_reward(reward, f"{score:.6f}\n")
    except Exception:  # noqa: BLE001 - whatever it is, it is no verdict
        traceback.print_exc()
        with suppress(OSError):
            files.reopen(reward)
            files.remove(reward)  # what lies there is the work's
        return NO_VERDICT
    with suppress(OSError):
        os.write(1, f"{said}\n".encode())  # by print it could fail at the end, and the end would not be a good one
    return 0


def graded(wanted: dict[str, Any]) -> tuple[float, str]:
    """(score in [0, 1], one line) of the work in the current directory."""
    children.prepare()
    laid = laid_over.Laid(wanted, HERE / "lay")
    root = Path(tempfile.mkdtemp(prefix="graded-"))
    try:
        runs = Runs(wanted, root, laid)
        found = [runs.all(number) for number in range(laid.runs)]
    finally:
        children.kill_descendants()
        files.discard(root)
    passed, skipped, unfounded = laid.proven([outcomes for outcomes, _ in found])
    score, said = judged(wanted, passed, skipped, laid.sure)
    notes = [f"{unfounded} more passed whatever they asked for, so they don't count"] if unfounded else []
    return score, "; ".join([said, *notes, *dict.fromkeys(each for _, remarks in found for each in remarks)])


def judged(wanted: dict[str, Any], passed: set[str], skipped: set[str], sure: dict[str, int]) -> tuple[float, str]:
    """(score in [0, 1], one line): the share of the expected tests that passed, or whether all did."""
    if wanted["count"]:
        found = certain.counted(passed, sure, wanted["count"])
        return found / wanted["count"], f"{found} of {wanted['count']} tests pass"
    target, keep = wanted["must_pass"], wanted["keep_passing"]
    solved = sum(name in passed for name in target)
    kept = sum(name in passed or name in skipped for name in keep)
    said = f"{solved} of {len(target)} wanted and {kept} of {len(keep)} other tests pass"
    if solved == len(target) and kept == len(keep):
        return 1.0, said
    share = solved / len(target) * (kept / len(keep) if keep else 1.0)
    return (share if wanted["scoring"] == "share" else 0.0), said


def reward_place() -> Path:
    """Where the reward belongs, by the names that its folders have before the work is let in."""
    place = Path(os.environ["REWARD_FILE"])
    return Path(os.path.realpath(str(place.parent)), place.name)


def write_reward(place: Path, text: str) -> None:
    """Write it, whatever the work has made of the place."""
    files.reopen(place)
    for folder in (place.parents[1], place.parent):
        files.hold(folder)
    files.write_new(place, text)


class Spoilt(Exception):
    """The work has made something of its copy that leaves nothing to count."""


class Runs:
    """Runs of all files of tests, each file in a process of its own."""

    def __init__(self, wanted: dict[str, Any], root: Path, laid: Any) -> None:
        """`root` is for copies of the work, which is the current directory."""
        self._wanted, self._root, self._laid = wanted, root, laid
        self._source, self._most, self._begun = Path.cwd(), float("inf"), False

    def all(self, number: int) -> tuple[dict[str, str], list[str]]:
        """({test: outcome}, remarks) of one run, in a copy of the work that is gone afterwards."""
        place = self._root / secrets.token_hex(8)
        outcomes: dict[str, str] = {}
        notes: list[str] = []
        try:
            with self._blaming_the_work():
                self._lay(place / "work", number)
        except Spoilt as spoilt:
            return {}, [str(spoilt)]
        for file in self._laid.in_order(self._wanted["files"]):
            found, note = self._file(place, place / "work", file)
            outcomes.update(found)
            notes += [f"{file}: {note}"] if note else []
        files.discard(place)
        return outcomes, notes

    @contextmanager
    def _blaming_the_work(self) -> Iterator[None]:
        """For what cannot be done after it was let in; before, that is no verdict."""
        try:
            yield
        except OSError as error:
            if not self._begun:
                raise
            raise Spoilt(f"the work hindered its tests, so none of it counts: {error}") from error

    def _lay(self, work: Path, number: int) -> None:
        size = files.copy_work(self._source, work, set(self._wanted["guarded"]), self._most)
        self._most = min(self._most, 2 * size + SPARE_BYTES)  # tests that were run may have filled what is copied next
        for name in self._wanted["remove"]:
            files.remove(files.no_further_than_a_link(work, name))
        self._laid.over(work, number)

    def _file(self, place: Path, work: Path, file: str) -> tuple[dict[str, str], str]:
        """({test: outcome}, a remark) of one file of tests."""
        canaries = [str(Path(file).parent / f"test_{secrets.token_hex(8)}.py") for _ in range(2)]
        try:
            with self._blaming_the_work():
                config = self._prepare(place, work, canaries)
            words = [self._wanted["runner"], str(work), str(config), canaries[0], file, canaries[1]]
            outcomes, late = self._heard(work, file, words)
            with self._blaming_the_work():
                for name in canaries:
                    files.remove(work / name)
        except Spoilt as spoilt:
            return {}, str(spoilt)
        control = [[f"{name}::{test}" for test in CANARIES[self._wanted["runner"]]] for name in canaries]
        return counted(outcomes, control, file, self._wanted["seconds"] if late else 0)

    def _prepare(self, place: Path, work: Path, canaries: list[str]) -> Path:
        """Lay the canaries; the runner's configuration."""
        files.reopen(HERE / "run_tests.py", work)
        for folder in (place, work):
            files.hold(folder)
        for name in canaries:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            files.write_new(work / name, CANARY)
        if self._wanted["config"]:
            return work / str(self._wanted["config"])
        files.write_new(place / "pytest.ini", "[pytest]\n")
        return place / "pytest.ini"

    def _heard(self, work: Path, file: str, words: list[str]) -> tuple[dict[str, str], bool]:
        """({test: outcome}, whether it was ended for being late)."""
        mark = secrets.token_hex(16)
        lines, late = children.listen(
            [sys.executable, "-I", "-B", str(HERE / "run_tests.py"), *words], work, mark, self._wanted["seconds"]
        )
        children.kill_descendants()  # what this file's tests left cannot meddle with the next one's
        if mark not in lines:
            said = f": {lines[0][:MOST_SAID]}" if lines[0] else ""
            raise RuntimeError(f"{file}: its run did not begin, which is no fault of the work{said}")
        self._begun = True
        return outcomes_in(lines, mark), late


def outcomes_in(lines: list[str], mark: str) -> dict[str, str]:
    """{test: outcome} of marked lines; one that names no test is the work's and says nothing."""
    outcomes: dict[str, str] = {}
    for line in lines:
        said, _, rest = line.partition(" ")
        outcome, _, name = rest.partition(" ")
        if said == mark and name.startswith('"'):  # a list may be deeper, and a number longer, than can be read
            with suppress(ValueError):
                outcomes[json.loads(name)] = outcome
    return outcomes


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
    sys.exit(main())
