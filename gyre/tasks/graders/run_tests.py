"""Runs files of tests and says each test's outcome on a pipe: `python3 -I run_tests.py RUNNER ROOT CONFIG FILE...`.

RUNNER is pytest or unittest, ROOT the folder that holds the files, CONFIG a pytest configuration. Standard input holds
the word that marks our lines; environment variable RESULTS is the number of the pipe. Both are read, and the folder of
the tests is closed to this process, before anything below ROOT can be imported; a line of the word alone says so. Where
pytest refuses CONFIG before that, its own words are all that is said.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import importlib.util
import io
import json
import os
import re
import stat
import struct
import sys
import traceback
import unittest
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls of Landlock, by the same numbers everywhere
READ_FILE, READ_FOLDER, MOVE, SIGNALS = 1 << 2, 1 << 3, 1 << 13, 1 << 1
NO_NEW_PRIVILEGES, MOVES_SINCE, SCOPES_SINCE = 38, 2, 6

SECCOMP, FILTER, REFUSE, ALLOW = 22, 2, 0x00050000 | errno.EPERM, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of a filter's language: a word of the call, whether it is a number, the answer
NUMBER, KIND, FIRST = 0, 4, 16  # where the call, the kind of machine, and the first argument stand
PRLIMIT = (
    (0xC000003E, 302), (0xC000003E, 302 | 1 << 30), (0x40000003, 340), (0xC00000B7, 261), (0x40000028, 369),
)  # fmt: skip
"""(machine, system call) that sets another process's limits: x86-64, its x32, i386, AArch64, ARM."""
EARLY = re.compile(r"(?<![\w-])-[pW]|pythonwarnings|filterwarnings|pythonpath")
"""What may make pytest import from the work while it still reads its configuration, which can refuse nothing then."""


class Speaker:
    """Says outcomes; what it needs is bound when it is made, so that later changes to modules don't reach it."""

    def __init__(self, pipe: int, mark: str, root: str) -> None:
        """Take over the pipe."""
        write, dumps = os.write, json.dumps
        self._roots = [each for each in (root, str(Path(root) / "src")) if os.path.isdir(each)]
        self.begun = False

        def say(name: str, outcome: str) -> None:
            write(pipe, f"{mark} {outcome} {dumps(name)}\n".encode())

        def line(text: str) -> None:
            write(pipe, f"{text}\n".encode())

        self.say, self.line, self._mark = say, line, mark

    def begin(self) -> None:
        """Let the work in, and say so."""
        if not self.begun:
            self.begun = True
            self.line(self._mark)
            sys.path[:0] = self._roots


class Outcomes(unittest.TestResult):
    """Of one module of unittest tests, under the names that pytest would give them."""

    def __init__(self, speaker: Speaker, file: str) -> None:
        """`file` is the name of the tests' file."""
        super().__init__()
        self._say, self._file = speaker.say, file
        self._bad: set[str] = set()

    def _name(self, test: unittest.TestCase) -> str:
        return f"{self._file}::{type(test).__name__}::{getattr(test, '_testMethodName', 'test')}"

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's word
        if self._name(test) not in self._bad:
            self._say(self._name(test), "passed")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._say(self._name(test), "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._say(self._name(test), "skipped")

    def addSubTest(self, test: unittest.TestCase, subtest: object, err: Any) -> None:  # noqa: N802
        if err is not None:
            self._bad.add(self._name(test))
            self._say(self._name(test), "failed")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._failed(test)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._failed(test)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._failed(test)

    def _failed(self, test: unittest.TestCase) -> None:
        self._bad.add(self._name(test))
        self._say(self._name(test), "failed")


class Plugin:
    """Listens to pytest."""

    def __init__(self, speaker: Speaker, root: str, files: list[str]) -> None:
        """Say what is heard of tests in these files, of which the first and the last are canaries."""
        self._say, self._speaker = speaker.say, speaker
        self._canaries, self._paths = (files[0], files[-1]), {os.path.join(root, file) for file in files}
        self._bad: set[str] = set()

    def pytest_load_initial_conftests(self, parser: Any, args: list[str]) -> Iterator[None]:
        """Leave out what the configuration asks of plug-ins, which are off: it would end the run."""
        sys.stderr = sys.__stderr__
        self._speaker.begin()
        yield
        args[:] = self._of_use(parser, [each for each in args if each != "--strict-config"])

    def _of_use(self, parser: Any, args: list[str]) -> list[str]:
        """Without each that can be left out and pytest's own options stay the same: all that plug-ins read, and paths.

        One by one, as the number that one option has may be another's too, until what stood behind one is gone as well.
        """

        def said(args: list[str]) -> dict[str, Any]:
            known, _ = parser.parse_known_and_unknown_args(list(args))
            return {key: value for key, value in vars(known).items() if key != "file_or_dir"}

        wanted, before = said(args), len(args) + 1
        while len(args) < before:
            before = len(args)
            for place in range(before - 1, -1, -1):
                fewer = args[:place] + args[place + 1 :]
                with suppress(sys.modules["pytest"].UsageError):  # what is left stands for nothing
                    args = fewer if args[place] not in self._paths and said(fewer) == wanted else args
        return args

    def pytest_configure(self, config: Any) -> None:
        """The canaries are tests, whatever functions the configuration calls so."""
        config.getini("python_functions").append("test_must_fail")

    def pytest_collection_modifyitems(self, items: list[Any]) -> Iterator[None]:
        """The canaries stay, first and last, whatever the configuration selects and sorts."""
        before, after = (
            [item for item in items if item.nodeid.partition("::")[0] == canary] for canary in self._canaries
        )
        yield
        kept = {id(item) for item in (*before, *after)}
        items[:] = [*before, *(item for item in items if id(item) not in kept), *after]

    def pytest_runtest_logreport(self, report: object) -> None:
        """One phase (setup, call, teardown) of one test."""
        name, when, outcome = report.nodeid, report.when, report.outcome  # type: ignore[attr-defined]
        if outcome == "failed":
            self._bad.add(name)
            self._say(name, "failed")
        elif outcome == "skipped":
            self._say(name, "passed" if hasattr(report, "wasxfail") else "skipped")
        elif when == "call" and name not in self._bad:
            self._say(name, "passed")

    def pytest_runtest_logfinish(self) -> None:
        """What a failed test held is let go: the next one may count what is alive."""
        error, seen = getattr(sys, "last_value", None), set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            for frame, _ in traceback.walk_tb(error.__traceback__):
                with suppress(RuntimeError):  # one that still runs
                    frame.clear()
                    dict(frame.f_locals)  # what was looked at once is kept apart, and only this empties it
            error = error.__context__
        for kept in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(kept, None)


def imported(root: str, file: str) -> Any:
    """The module of this very file, whatever else of the work has its name."""
    name = file[: -len(".py")].replace("/", ".")
    parent, _, last = name.rpartition(".")
    if parent:
        importlib.import_module(parent)
    spec = importlib.util.spec_from_file_location(name, os.path.join(root, file))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def with_unittest(speaker: Speaker, root: str, files: list[str]) -> None:
    """Import all, then run all, in order."""
    speaker.begin()
    suites = []
    for file in files:
        try:
            module = imported(root, file)
        except Exception:  # noqa: BLE001 - whatever a module of a stranger raises
            traceback.print_exc()  # none of its tests is reported: all have failed
        else:
            suites.append((file, unittest.TestLoader().loadTestsFromModule(module)))
    for file, suite in suites:
        suite.run(Outcomes(speaker, file))


def close(folder: Path) -> None:
    """Nothing in a folder can be read any more, and no process outside can be signalled or traced.

    By this process and all that it starts; where the kernel has Landlock (signals: since its sixth version). Folders on
    the way to it cannot be listed any more. Raises OSError where the kernel has it and refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    whole = READ_FILE | READ_FOLDER | (MOVE if version >= MOVES_SINCE else 0)  # else no file moves to another folder
    told = struct.pack("=QQQ", whole, 0, SIGNALS)[: 24 if version >= SCOPES_SINCE else 8]
    ruleset = done(libc.syscall(CREATE_RULESET, told, ctypes.c_size_t(len(told)), 0))
    for path in beside(folder):
        try:
            found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # others' files come and go
            continue
        mode = os.fstat(found).st_mode
        if not stat.S_ISLNK(mode):
            rule = struct.pack("=Qi", whole if stat.S_ISDIR(mode) else READ_FILE, found)
            done(libc.syscall(ADD_RULE, ruleset, 1, rule, 0), errno.EBADFD)  # of no file system that it guards
        os.close(found)
    done(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    done(libc.syscall(RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def keep_to_own_limits() -> None:
    """No limits of another process can be set: without files or time the grader would end, and the work be left out.

    By this process and all that it starts; where the kernel has such filters.
    """
    lines = []
    for machine, call in PRLIMIT:  # each a jump over as many lines: (where it is equal, where it is not)
        lines += [(LOAD, 0, 0, KIND), (EQUAL, 0, 5, machine), (LOAD, 0, 0, NUMBER), (EQUAL, 0, 3, call)]
        lines += [(LOAD, 0, 0, FIRST), (EQUAL, 1, 0, 0), (RETURN, 0, 0, REFUSE)]  # 0 is the process itself
    lines.append((RETURN, 0, 0, ALLOW))
    body = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    libc = ctypes.CDLL(None)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(SECCOMP, FILTER, struct.pack("@HP", len(lines), ctypes.addressof(body)), 0, 0)


def done(result: int, harmless: int = 0) -> int:
    """What a system call gave. Raises OSError where it failed, unless for a harmless reason."""
    number = ctypes.get_errno()
    if result < 0 and number != harmless:
        raise OSError(number, os.strerror(number))
    return result


def beside(folder: Path) -> Iterator[str]:
    """Everything that is not on the way to a folder: together with that, all there is."""
    for inner in (folder, *folder.parents):
        if inner.parent != inner:
            with suppress(PermissionError), os.scandir(inner.parent) as entries:  # of another user's folder: nothing
                yield from (entry.path for entry in entries if entry.name != inner.name)


def with_pytest(speaker: Speaker, root: str, config: str, files: list[str]) -> None:
    """The same with pytest, without its cache and plug-ins."""
    import pytest

    for hook in (Plugin.pytest_load_initial_conftests, Plugin.pytest_collection_modifyitems):
        pytest.hookimpl(hookwrapper=True, tryfirst=True)(hook)
    own = ["-p", "no:cacheprovider", "-p", "no:stepwise", "-q"]
    against = ["--maxfail=0", "-k", "", "-o", "strict_config=false"]  # what would end it, or leave out what is named
    options = [*own, *against, "-c", config, "--rootdir", root, "--confcutdir", root]
    heard = io.StringIO()
    if EARLY.search(Path(config).read_text(encoding="utf-8", errors="replace")):
        speaker.begin()
    else:
        sys.stderr = heard  # until it begins
    try:
        paths = [os.path.join(root, file) for file in files]
        pytest.main([*options, *paths], plugins=[Plugin(speaker, root, files)])
    finally:
        sys.stderr = sys.__stderr__
        if not speaker.begun:
            speaker.line(" ".join(heard.getvalue().split()))


def main() -> None:
    """Read what to do, then let the work in."""
    mark = sys.stdin.buffer.read().decode()
    pipe = int(os.environ.pop("RESULTS"))
    runner, root, config, *files = sys.argv[1:]
    del sys.argv[1:]
    close(Path(__file__).resolve().parent)
    keep_to_own_limits()
    if runner == "pytest":  # before ROOT is where it could be taken from; where it is missing, the run does not begin
        importlib.import_module("pytest")
    speaker = Speaker(pipe, mark, root)
    with_pytest(speaker, root, config, files) if runner == "pytest" else with_unittest(speaker, root, files)


if __name__ == "__main__":
    main()
