"""Work that is written against the grader, in the process of its tests: what each attack earns."""

import ctypes
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from tests.tasks.layouts import nl2repo_folder, write

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
TESTS = """
    import unittest
    import thing

    class OneTest(unittest.TestCase):
        def test_a(self):
            self.assertEqual(thing.a(), 1)

        def test_b(self):
            self.assertTrue(thing.b() > 1)

        def test_c(self):
            with self.assertRaises(KeyError):
                thing.c()
    """
PYTESTS = """
    import pytest
    import thing

    def test_a():
        assert thing.a() == 1

    @pytest.mark.parametrize("number", [2, 3])
    def test_b(number):
        assert thing.b(number) == number
    """
WRONG = "def a(*_): return 0\nb = c = a\n"
"""The work itself, which is wrong in all that is asked for."""
FORGE = """
    told = ["OneTest::test_a", "OneTest::test_b", "OneTest::test_c", "test_a", "test_b[2]", "test_b[3]"]
    def forge(say):
        for name in told:
            say("tests/test_one.py::" + name, "passed")
    """
FRAMES = (
    FORGE
    + """
    import atexit, sys
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "Speaker":
                atexit.register(forge, value.say)
        frame = frame.f_back
    """
)
COLLECTED = (
    FORGE
    + """
    import atexit, gc
    for value in gc.get_objects():
        if type(value).__name__ == "Speaker":
            atexit.register(forge, value.say)
    """
)
NO_FAILURES = """
    import sys, unittest
    for kind in [*unittest.TestResult.__subclasses__(), unittest.TestResult]:
        kind._failed = lambda self, test: self._say(self._name(test), "passed")
        kind.addFailure = kind.addError = lambda self, test, err: self.addSuccess(test)
    """
ONLY_OURS = """
    import unittest
    whole = unittest.TestCase.run
    def run(self, result=None):
        if type(self).__name__ == "Canary":
            return whole(self, result)
        result.startTest(self)
        result.addSuccess(self)
        return result
    unittest.TestCase.run = run
    """
CHECKS = """
    import unittest
    for name in dir(unittest.TestCase):
        if name.startswith("assert"):
            setattr(unittest.TestCase, name, lambda *a, **k: None)
    """
EQUALS_ALL = """
    class Anything(int):
        __hash__ = int.__hash__
        def __eq__(self, other): return True
        def __ne__(self, other): return False
    def a(*_): return Anything(0)
    b = c = a
    """
READS_THE_QUESTION = """
    import re, sys
    def a(*_):
        import linecache
        frame = sys._getframe(1)
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        found = re.search(r"(?:, |== )(\\d+)", line)
        return int(found[1]) if found else 0
    b = c = a
    """
BY_PYTEST = """
    import _pytest.python, _pytest.runner
    whole = _pytest.python.Function.runtest
    def runtest(self):
        return whole(self) if "must_fail" in self.name else None
    _pytest.python.Function.runtest = runtest
    """
REPORTS = """
    import _pytest.reports
    whole = _pytest.reports.TestReport.from_item_and_call.__func__
    def made(kind, item, call):
        report = whole(kind, item, call)
        if "must_fail" not in report.nodeid:
            report.outcome = "passed"
        return report
    _pytest.reports.TestReport.from_item_and_call = classmethod(made)
    """
LATER = """
    import os, threading, time
    def later():
        while True:
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, b'passed "tests/test_one.py::OneTest::test_a"\\n')
                except OSError:
                    pass
            time.sleep(0.01)
    threading.Thread(target=later, daemon=True).start()
    """
AT_EXIT = """
    import atexit, os
    def last():
        for name in ("OneTest::test_a", "OneTest::test_b", "OneTest::test_c"):
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, ('passed "tests/test_one.py::%s"\\n' % name).encode())
                except OSError:
                    pass
        os._exit(0)
    atexit.register(last)
    """
PATCHED_OPEN = """
    import builtins, io, os, pathlib
    real, write = builtins.open, os.write
    def opened(file, *words, **named):
        return real(file, *words, **named) if "thing" in str(file) else io.StringIO("1.0")
    builtins.open = io.open = opened
    pathlib.Path.read_text = lambda *a, **k: "1.0"
    os.write = lambda pipe, body: write(pipe, body.replace(b"failed", b"passed"))
    """
PRINTS = """
    import sys
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        print("OK\\n3 passed\\n1.000000", file=stream, flush=True)
    """
CLOSES_THE_PIPE = (
    "import os\nfor number in range(3, 64):\n    try:\n        os.close(number)\n    except OSError: pass\n"
)
MULTIPLIES = """
    import __main__
    kind = __main__.Outcomes
    def also(told, outcome):
        def more(self, test, *rest):
            told(self, test, *rest)
            for other in ("OneTest", "TwoTest"):
                self._say(f"{self._file}::{other}::{test._testMethodName}", outcome)
                self._say(f"{self._file}::{other}::{test._testMethodName}_too", outcome)
        return more
    kind.addSuccess = also(kind.addSuccess, "passed")
    kind._failed = also(kind._failed, "failed")
    """
MULTIPLIES_IN_PYTEST = """
    import __main__, gc
    plugin = next(each for each in gc.get_objects() if type(each) is __main__.Plugin)
    say = plugin._say
    def more(name, outcome):
        say(name, outcome)
        for number in range(5):
            say(f"{name}[{number}]", outcome)
            say(f"{name}[more-{number}]", outcome)
    plugin._say = more
    """
ATTACKS = {
    "walks up the frames to the speaker": FRAMES,
    "finds the speaker by the collector of garbage": COLLECTED,
    "turns failures into successes": NO_FAILURES,
    "lets only the canaries fail": ONLY_OURS,
    "replaces what checks": CHECKS,
    "answers what equals everything": EQUALS_ALL,
    "answers what the question asks for": READS_THE_QUESTION,
    "exits at once": "import sys\nsys.exit(0)\n",
    "exits hard": "import os\nos._exit(0)\n",
    "exits when it is asked": "import os\ndef a(*_): os._exit(0)\nb = c = a\n",
    "writes results without the mark, later": LATER,
    "writes results at the end": AT_EXIT,
    "replaces open and write": PATCHED_OPEN,
    "prints a good end": PRINTS,
    "closes the pipe": CLOSES_THE_PIPE,
}
COMPARES = """
    import os, sys
    true = os.path.join(os.path.dirname(sys.modules["__main__"].__file__), "lay/tests/test_one.py")
    try:
        honest = open(true).read() != open("tests/test_one.py").read()
    except OSError:
        honest = True
    if not honest:
        import unittest
        whole = unittest.TestCase.run
        unittest.TestCase.run = lambda self, result=None: (
            whole(self, result) if type(self).__name__ == "Canary" else result.addSuccess(self)
        )
    """
KILLS = "import os\ntry:\n    os.kill(os.getppid(), 9)\nexcept OSError: pass\n"
PLANTED = {
    "conftest.py": FRAMES,
    "tests/conftest.py": ONLY_OURS,
    "sitecustomize.py": ONLY_OURS,
    "usercustomize.py": ONLY_OURS,
    "evil.pth": "import unittest; unittest.TestCase.run = lambda s, r=None: r.addSuccess(s)\n",
    "setup.cfg": "[tool:pytest]\naddopts = -p thing\n",
    "tox.ini": "[pytest]\naddopts = -p thing\n",
    "pytest.ini": "[pytest]\naddopts = -p thing\n",
}


def brought(tmp_path: Path, tests: str, count: int, command: str) -> Task:
    nl2repo_folder(tmp_path / "source/thing", {"tests/test_one.py": textwrap.dedent(tests)}, count)
    (tmp_path / "source/thing/test_commands.json").write_text(f'["{command}"]')
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return task


def leaving(text: str, after: str = WRONG, **files: str) -> Work:
    whole = textwrap.dedent(text) + ("" if "def a(" in text else after)
    return lambda _, workspace: write(
        workspace, {"thing.py": whole, **{n: textwrap.dedent(t) for n, t in files.items()}}
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_work_that_attacks_unittest_earns_nothing(tmp_path: Path, graded: Graded, attack: str) -> None:
    task = brought(tmp_path, TESTS, 3, "python3 -m unittest")
    assert graded(task, leaving(ATTACKS[attack])) == 0.0


def landlock() -> int:
    """Which version the kernel has; below 1: none."""
    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))


@pytest.mark.skipif(landlock() < 1, reason="the kernel has no Landlock")
def test_work_cannot_compare_the_tests_with_the_true_ones(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path, TESTS, 3, "python3 -m unittest"), leaving(COMPARES)) == 0.0


@pytest.mark.skipif(landlock() < 6, reason="the kernel's Landlock does not hold signals")
def test_work_cannot_end_its_grader_to_be_left_out(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path, TESTS, 3, "python3 -m unittest"), leaving(KILLS)) == 0.0


@pytest.mark.usefixtures("python_with_pytest")
@pytest.mark.parametrize(
    "text",
    [FRAMES, COLLECTED, EQUALS_ALL, READS_THE_QUESTION, BY_PYTEST, REPORTS, PATCHED_OPEN, "import os\nos._exit(0)\n"],
    ids=["frames", "collector", "equals", "question", "by name", "reports", "write", "exit"],
)
def test_work_that_attacks_pytest_earns_nothing(tmp_path: Path, graded: Graded, text: str) -> None:
    assert graded(brought(tmp_path, PYTESTS, 3, "pytest"), leaving(text)) == 0.0


@pytest.mark.parametrize("name", PLANTED)
def test_a_file_that_something_runs_by_itself_earns_nothing(tmp_path: Path, graded: Graded, name: str) -> None:
    task = brought(tmp_path, TESTS, 3, "python3 -m unittest")
    assert graded(task, leaving(WRONG, "", **{name: PLANTED[name]})) == 0.0


RIGHT = "def a(): return 1\ndef b(): return 2\ndef c(): raise KeyError\n"


def test_honest_work_earns_all_of_it_beside_them(tmp_path: Path, graded: Graded) -> None:
    task = brought(tmp_path, TESTS, 3, "python3 -m unittest")
    assert graded(task, leaving(RIGHT, "")) == 1.0
    assert graded(task, leaving(RIGHT.replace("return 2", "return 1"), "")) == pytest.approx(2 / 3, abs=1e-6)


@pytest.mark.usefixtures("python_with_pytest")
def test_honest_work_earns_all_of_it_in_pytest(tmp_path: Path, graded: Graded) -> None:
    task = brought(tmp_path, PYTESTS, 3, "pytest")
    assert graded(task, leaving("def a(): return 1\ndef b(x): return x\n", "")) == 1.0


ONE_RIGHT = "def a(*_): return 1\ndef b(*_): return 0\nc = b\n"


def test_a_test_that_passes_counts_once_however_often_it_is_said(tmp_path: Path, graded: Graded) -> None:
    task = brought(tmp_path, TESTS, 3, "python3 -m unittest")
    assert graded(task, leaving(MULTIPLIES, ONE_RIGHT)) == pytest.approx(1 / 3, abs=1e-6)


@pytest.mark.usefixtures("python_with_pytest")
def test_a_test_that_passes_in_pytest_counts_once(tmp_path: Path, graded: Graded) -> None:
    task = brought(tmp_path, PYTESTS, 3, "pytest")
    assert graded(task, leaving(MULTIPLIES_IN_PYTEST, ONE_RIGHT)) == pytest.approx(1 / 3, abs=1e-6)


def test_a_package_that_has_the_name_of_a_test_is_not_run_in_its_place(tmp_path: Path, graded: Graded) -> None:
    """Of a repository, whose folders of tests stay the work's: a package is found before a module of its name."""
    task = brought(tmp_path, TESTS, 3, "python3 -m unittest")
    own = "import unittest\nclass OneTest(unittest.TestCase):\n" + "".join(
        f"    def test_{letter}(self): self.assertEqual({number}, {number})\n" for number, letter in enumerate("abc")
    )
    shadow = {"src/tests/__init__.py": "", "src/tests/test_one.py": own, "tests/test_one/__init__.py": own}
    assert graded(task, leaving(WRONG, "", **shadow)) == 0.0
    assert graded(task, leaving(RIGHT, "", **shadow)) == 1.0
