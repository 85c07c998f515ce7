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
- all that the tests started is killed before the reward is written;
- what cannot be done once the work was let in counts against it, and is no verdict before: it cannot be left out by
  making its grader fail.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import secrets
import shutil
import stat
import subprocess
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
children: Any = importlib.import_module("children")
twins: Any = importlib.import_module("twins")
ENDINGS = (".pth", ".egg-link", ".pyc", ".egg-info", ".dist-info")
NO_VERDICT = 125  # exit code
ENTRY_BYTES = 4096  # what a file counts for in the size of the work, besides its own size
SPARE_BYTES = 64 << 20
DISCARD_SECONDS = 2.0
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
            reopen(reward)
            remove(reward)  # what lies there is the work's
        return NO_VERDICT
    with suppress(OSError):
        os.write(1, f"{said}\n".encode())  # by print it could fail at the end, and the end would not be a good one
    return 0


def graded(wanted: dict[str, Any]) -> tuple[float, str]:
    """(score in [0, 1], one line) of the work in the current directory."""
    children.prepare()
    laid = Laid(wanted)
    root = Path(tempfile.mkdtemp(prefix="graded-"))
    found: dict[bool, tuple[dict[str, str], list[str]]] = {False: ({}, []), True: ({}, [])}
    order = [False, True] if laid.twins else [False]
    secrets.SystemRandom().shuffle(order)  # so that being first or second tells the work nothing
    try:
        runs = Runs(wanted, root, laid)
        for twin in order:
            found[twin] = runs.all(twin=twin)
    finally:
        children.kill_descendants()
        discard(root)
    passed, skipped, unfounded = laid.proven(found[False][0], found[True][0])
    score, said = judged(wanted, passed, skipped)
    notes = [f"{unfounded} more passed whatever they asked for, so they don't count"] if unfounded else []
    return score, "; ".join([said, *notes, *found[False][1]])


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


def copy_work(source: Path, target: Path, guarded: set[str], most: float) -> int:
    """Copy the work without its repository, without what would run by itself, and without what is too deep to name.

    The size of it all. Raises OSError, also where that is over `most` bytes.
    """
    target.mkdir(parents=True)
    total, folders = 0, [(str(source), str(target))]
    while folders:  # not by a function that calls itself: folders are nested deeper than calls can be
        here, there = folders.pop()
        for path, found in within(here, guarded):
            total += ENTRY_BYTES + found.st_size * stat.S_ISREG(found.st_mode)
            if total > most:
                raise OSError(errno.EFBIG, "more than twice of what the work was", path)
            new = os.path.join(there, os.path.basename(path))
            with suppress_only(errno.ENAMETOOLONG):
                copy_one(path, new, found)
                if stat.S_ISDIR(found.st_mode):
                    folders.append((path, new))
    return total


def within(folder: str, guarded: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """(path, what it is) of all in a folder that is wanted in a copy of the work: files, folders, links to either."""
    if not os.access(folder, os.R_OK | os.X_OK):  # whatever modes the agent gave to what is ours now
        os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:  # one by one: there may be more than memory holds
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if not unwanted(entry.name, guarded) and (os.path.isfile(path) or os.path.isdir(path)):
                yield path, os.lstat(path)


def unwanted(name: str, guarded: set[str]) -> bool:
    """Whether it is what Python or a test runner would run by itself, or a repository."""
    return name in guarded or name.endswith(ENDINGS) or name in (".git", "__pycache__")


def copy_one(path: str, new: str, found: os.stat_result) -> None:
    """Copy a file or a link, or make a folder."""
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(path), new)
    elif stat.S_ISDIR(found.st_mode):
        os.mkdir(new)
    else:
        if not found.st_mode & 0o400:
            os.chmod(path, found.st_mode | 0o400)
        shutil.copy2(path, new)


@contextmanager
def suppress_only(number: int) -> Iterator[None]:
    """Of errors of the system this one is none."""
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; at least from its place."""
    if path.is_dir() and not path.is_symlink():
        aside = path.with_name(secrets.token_hex(16))
        path.rename(aside)
        discard(aside)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def no_further_than_a_link(work: Path, name: str) -> Path:
    """What a name is in the work, or the link on the way to it: what lies behind one is not the work's."""
    path = work
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            break
    return path


def discard(folder: Path) -> None:
    """Remove a folder as far as that can be done in a while: it may be nested deeper and hold more than we bear."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["rm", "-rf", str(folder)]
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=DISCARD_SECONDS, check=False)


def hold(folder: Path) -> None:
    """See to it that a folder of ours is one and can be used, whatever the work has made of it. Raises OSError."""
    if folder.is_symlink() or not folder.is_dir():
        remove(folder)
        folder.mkdir()
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        folder.chmod(0o700)


def reopen(*paths: Path) -> None:
    """Folders of ours on the way to them can be gone through, whatever modes the work has given those."""
    for path in paths:
        for folder in reversed(path.parents):
            if not os.access(folder, os.X_OK):
                with suppress(OSError):
                    folder.chmod(0o700)


def write_new(path: Path, text: str) -> None:
    """Write a new file in the place of whatever lies there, never through a link. Raises OSError."""
    remove(path)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def reward_place() -> Path:
    """Where the reward belongs, by the names that its folders have before the work is let in."""
    place = Path(os.environ["REWARD_FILE"])
    return Path(os.path.realpath(str(place.parent)), place.name)


def write_reward(place: Path, text: str) -> None:
    """Write it, whatever the work has made of the place."""
    reopen(place)
    for folder in (place.parents[1], place.parent):
        hold(folder)
    write_new(place, text)


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


class Spoilt(Exception):
    """The work has made something of its copy that leaves nothing to count."""


class Runs:
    """Runs of all files of tests, each file in a process of its own."""

    def __init__(self, wanted: dict[str, Any], root: Path, laid: Laid) -> None:
        """`root` is for copies of the work, which is the current directory."""
        self._wanted, self._root, self._laid = wanted, root, laid
        self._source, self._most, self._begun = Path.cwd(), float("inf"), False

    def all(self, *, twin: bool) -> tuple[dict[str, str], list[str]]:
        """({test: outcome}, remarks) in a copy of the work that is gone afterwards."""
        place = self._root / secrets.token_hex(8)
        outcomes: dict[str, str] = {}
        notes: list[str] = []
        try:
            with self._blaming_the_work():
                self._lay(place / "work", twin=twin)
        except Spoilt as spoilt:
            return {}, [str(spoilt)]
        for file in self._wanted["files"]:
            found, note = self._file(place, place / "work", file)
            outcomes.update(found)
            notes += [f"{file}: {note}"] if note else []
        discard(place)
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

    def _lay(self, work: Path, *, twin: bool) -> None:
        size = copy_work(self._source, work, set(self._wanted["guarded"]), self._most)
        self._most = min(self._most, 2 * size + SPARE_BYTES)  # tests that were run may have filled what is copied next
        for name in self._wanted["remove"]:
            remove(no_further_than_a_link(work, name))
        self._laid.over(work, twin=twin)

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
                    remove(work / name)
        except Spoilt as spoilt:
            return {}, str(spoilt)
        control = [[f"{name}::{test}" for test in CANARIES[self._wanted["runner"]]] for name in canaries]
        return counted(outcomes, control, file, self._wanted["seconds"] if late else 0)

    def _prepare(self, place: Path, work: Path, canaries: list[str]) -> Path:
        """Lay the canaries; the runner's configuration."""
        reopen(HERE / "run_tests.py", work)
        for folder in (place, work):
            hold(folder)
        for name in canaries:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            write_new(work / name, CANARY)
        if self._wanted["config"]:
            return work / str(self._wanted["config"])
        write_new(place / "pytest.ini", "[pytest]\n")
        return place / "pytest.ini"

    def _heard(self, work: Path, file: str, words: list[str]) -> tuple[dict[str, str], bool]:
        """({test: outcome}, whether it was ended for being late)."""
        mark = secrets.token_hex(16)
        lines, late = children.listen(
            [sys.executable, "-I", "-B", str(HERE / "run_tests.py"), *words], work, mark, self._wanted["seconds"]
        )
        children.kill_descendants()  # what this file's tests left cannot meddle with the next one's
        if mark not in lines:
            raise RuntimeError(f"{file}: its run did not begin, which is no fault of the work")
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
