"""What a judge may do with the work: look at it as it was left, and run tests of its own on copies.

Looking goes through no shell and follows no link out; each run has a fresh copy of the work, in a sandbox, with the
judge's files beside it, so nothing that runs can change what is looked at or what the next run finds.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.evaluators.judge import tree
from gyre.evaluators.judge.talk import Call, Tool
from gyre.evaluators.port import Errand, Run
from gyre.tasks.folder import Task
from gyre.tasks.places import working_places

MOST_LISTED = 300
MOST_CHARACTERS = 12_000
"""Of a file's piece, a search or a run's output."""
_MOST_FOUND = 60
_LINE = 200
_MOST_SEARCHED = 1 << 20  # bytes of each file
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class ListFiles(_Arguments):
    """List the files of the work, with their sizes in bytes; 300 at a time."""

    folder: str = ""
    """Only those below this folder."""
    skip: Annotated[int, Field(ge=0)] = 0
    """How many to pass by, as seen already."""


class ReadFile(_Arguments):
    """Read a text file of the work, 12,000 characters at a time."""

    path: str
    skip: Annotated[int, Field(ge=0)] = 0
    """How many characters to pass by, as read already."""


class Search(_Arguments):
    """Find lines that hold a text (no pattern), whatever its case."""

    text: Annotated[str, Field(min_length=1)]
    folder: str = ""
    """Only below this folder."""


class TestFile(_Arguments):
    """A file of your tests."""

    __test__ = False  # no test class, whatever a collector thinks of its name
    path: str
    """Relative to the folder of your tests."""
    content: Annotated[str, Field(max_length=200_000)]


class RunTests(_Arguments):
    """Write test files of your own and run a command in a fresh copy of the work.

    Your files lie outside of the copy, in the folder that $TESTS_DIR names. Nothing that a run changes is kept, and
    nothing beyond this machine can be reached.
    """

    files: Annotated[list[TestFile], Field(min_length=1, max_length=50)]
    command: Annotated[str, Field(min_length=1, max_length=10_000)]
    """For /bin/sh, such as: python3 "$TESTS_DIR/check.py"."""


TOOLS: Mapping[str, type[_Arguments]] = {
    "list_files": ListFiles,
    "read_file": ReadFile,
    "search": Search,
    "run_tests": RunTests,
}


def tool(name: str, arguments: type[BaseModel]) -> Tool:
    """As a model is told of it."""
    schema = arguments.model_json_schema()
    return Tool(name, " ".join((arguments.__doc__ or "").split()), schema)


class Workshop:
    """One state at one judge's disposal."""

    def __init__(self, run: Run, task: Task, state: Path, box: Path, test_seconds: float) -> None:
        """`state` is what was left of `task`; it is looked at and copied, and `box` takes the copies."""
        self._run, self._task, self._state, self._box = run, task, state, box
        self._seconds = test_seconds
        self.runs = 0
        """Of the judge's own tests."""

    def open(self) -> None:
        """Make everything readable for its owner: modes must not hide work from a judge. Raises OSError."""
        for entry in tree.walk(self._state):  # a folder comes before it is listed
            _allow(entry)

    async def use(self, call: Call) -> str:
        """What a call gives; all of it may be the work's own words. Raises ValueError: it cannot be done."""
        if call.name not in TOOLS:
            raise ValueError(f"there is no tool {call.name[:40]!r}")
        try:
            wanted = TOOLS[call.name].model_validate(call.arguments)
            if isinstance(wanted, RunTests):
                return await self._tested(wanted)
            return await asyncio.to_thread(self._looked, wanted)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
        except OSError as error:
            raise ValueError(f"{error.strerror or error}") from error

    def _looked(self, wanted: BaseModel) -> str:
        if isinstance(wanted, ReadFile):
            return self._read(wanted)
        return self._listed(wanted) if isinstance(wanted, ListFiles) else self._found(wanted)

    def _listed(self, wanted: BaseModel) -> str:
        assert isinstance(wanted, ListFiles)
        lines = [f"{path.lstat().st_size:>9} {name}" for name, path in self._files(wanted.folder)]
        shown = lines[wanted.skip : wanted.skip + MOST_LISTED]
        left = len(lines) - wanted.skip - len(shown)
        return "\n".join(shown) + (f"\n({left} more: skip {wanted.skip + len(shown)})" if left > 0 else "")

    def _read(self, wanted: ReadFile) -> str:
        path = self._inside(wanted.path)
        with open(os.open(path, _READ), encoding="utf-8", errors="replace", newline="") as file:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is no file")
            size = path.stat().st_size
            passed = 0
            while passed < wanted.skip and (piece := file.read(min(1 << 16, wanted.skip - passed))):
                passed += len(piece)
            shown = file.read(MOST_CHARACTERS)
            more = f"\n(more: skip {passed + len(shown)}; {size} bytes in all)" if file.read(1) else ""
        return shown + more

    def _found(self, wanted: BaseModel) -> str:
        assert isinstance(wanted, Search)
        found: list[str] = []
        for name, path in self._files(wanted.folder):
            with contextlib.suppress(OSError), open(os.open(path, _READ), "rb") as file:  # noqa: PTH123
                text = file.read(_MOST_SEARCHED).decode(errors="replace")
                found += [
                    f"{name}:{number}: {line.strip()[:_LINE]}"
                    for number, line in enumerate(text.splitlines(), 1)
                    if wanted.text.casefold() in line.casefold()
                ]
            if len(found) >= _MOST_FOUND:
                return "\n".join(found[:_MOST_FOUND]) + "\n(and more: search for something rarer)"
        return "\n".join(found) or "(nowhere)"

    async def _tested(self, wanted: RunTests) -> str:
        if "\0" in wanted.command:
            raise ValueError("a command holds no NUL")
        place = self._box / f"run-{self.runs + 1}"
        try:
            tests = await asyncio.to_thread(self._laid, wanted.files, place)
            errand = Errand(
                ("/bin/sh", "-c", wanted.command),
                place / "ws",
                place,
                self._seconds,
                {"TESTS_DIR": str(tests)},
                (tests,),
                self._run.image(self._task),
                working_places(self._task, place / "ws", place),
            )
            ended = await self._run(errand)
            self.runs += 1
            changed = await asyncio.to_thread(_changed, wanted.files, tests)
        finally:
            for made in (place, _beside(place)):
                await self._run.clear(made)
        if changed:
            raise ValueError(f"your file {changed} was changed while it ran, so this run shows nothing")
        told = ended.output.decode(errors="replace")[-MOST_CHARACTERS:] or ended.said
        if ended.exit_code is None:
            return f"ended {ended.reason or f'after {self._seconds:g} s'}\n{told}"
        return f"exit code {ended.exit_code}\n{told}"

    def _laid(self, files: list[TestFile], place: Path) -> Path:
        tests = _beside(place)
        tests.mkdir(parents=True)
        (place / "logs").mkdir(parents=True)
        for file in files:
            path = tests / _relative(file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.content, encoding="utf-8", errors="replace")
        tree.copy(self._state, place / "ws")
        return tests

    def _files(self, below: str) -> Iterator[tuple[str, Path]]:
        top = Path(os.path.realpath(self._state))
        for entry in tree.walk(self._inside(below) if below else top):
            if not entry.is_dir(follow_symlinks=False):
                yield os.path.relpath(entry.path, top), Path(entry.path)

    def _inside(self, name: str) -> Path:
        """A path of the work; never one that leads out of it by a link."""
        root = Path(os.path.realpath(self._state))
        path = Path(os.path.realpath(root / _relative(name)))
        if not path.is_relative_to(root):
            raise ValueError("it leads out of the work")
        return path


def _beside(place: Path) -> Path:
    """Tests lie beside a run's box, so that they can be shown without being writable."""
    return place.with_name(f"{place.name}.tests")


def _changed(files: list[TestFile], tests: Path) -> str:
    """A file of the judge's that is not as it was written; "" when all are. The last of one name counts."""
    for path, content in {file.path: file.content for file in files}.items():
        wanted = content.encode(errors="replace")
        try:
            with open(os.open(tests / _relative(path), _READ), "rb") as file:  # noqa: PTH123
                if file.read(len(wanted) + 1) != wanted:
                    return path
        except OSError:
            return path
    return ""


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise ValueError("give a path relative to the folder, without ..")
    return path


def _allow(entry: os.DirEntry[str]) -> None:
    if not entry.is_symlink():
        bits = 0o700 if entry.is_dir() else 0o600
        with contextlib.suppress(OSError):
            Path(entry.path).chmod(entry.stat().st_mode & 0o777 | bits)
