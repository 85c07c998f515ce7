"""How tests and their twins are spread over the two runs, and what guessing earns."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from tests.tasks.layouts import nl2repo_folder, write

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
HEAD = "import unittest\nimport thing\n\nclass OneTest(unittest.TestCase):\n"
MANY = HEAD + "".join(f"    def test_{number}(self):\n        self.assertEqual(thing.a(), 1)\n" for number in range(40))
HANDED_ON = """
    def test_1(self):
        type(self).kept = thing.a()
        self.assertEqual(type(self).kept, 1)

    def test_2(self):
        with self.assertRaises(ZeroDivisionError):
            type(self).kept += 1
            1 / 0

    def test_3(self):
        for _ in range(2):
            type(self).kept += 1

    def test_4(self):
        self.assertEqual(type(self).kept, 4)
"""
HANDED_ON_LATE = """
    def test_1(self):
        self.assertEqual(thing.a(), 1)
        type(self).kept = 2

    def test_2(self):
        self.assertEqual(type(self).kept, 2)

    def test_3(self):
        self.assertEqual(type(self).kept, 2)
"""
UNUSUAL = {
    "an interrupt is expected": """
    def test_1(self):
        with self.assertRaises(KeyboardInterrupt):
            raise KeyboardInterrupt

    def test_2(self):
        with self.assertRaises(unittest.SkipTest):
            raise unittest.SkipTest
""",
    "an exit is expected": """
    def test_1(self):
        with self.assertRaises(SystemExit):
            raise SystemExit

    def test_2(self):
        with self.assertRaises((KeyError, ValueError)):
            {}[1]
""",
    "a test calls another": """
    def test_1(self):
        self.assertEqual(thing.a(), 1)

    def test_2(self):
        self.test_1()
        self.assertEqual(thing.a() + 1, 2)
""",
    "a helper is called like a test": """
    def test_1(self):
        test_equal(thing.a(), 1)

    def test_2(self):
        test_equal(thing.a() + 1, 2)

def test_equal(one, other):
    assert one == other
""",
    "one that is expected to fail is called like another": """
    def test_1(self):
        self.assertEqual(thing.a(), 1)

    @unittest.expectedFailure
    def test_1_bad(self):
        self.assertEqual(thing.a(), 2)
""",
}
IN_PYTEST = {
    "a class uses fixtures": """
import pytest, thing
@pytest.fixture
def it():
    return 1
@pytest.mark.usefixtures("it")
class TestAll:
    def test_1(self):
        assert thing.a() == 1
    def test_2(self, it):
        assert thing.a() == it
""",
    "a fixture is called like a test": """
import pytest, thing
KEPT = []
@pytest.fixture
def test_setup():
    KEPT.append(1)
def test_1(test_setup):
    assert thing.a() == len(KEPT)
def test_2():
    assert thing.a() == 1
""",
    "the next one counts what is alive": """
import thing, weakref
class Held: pass
ALIVE = weakref.WeakSet()
def test_1():
    held = Held()
    ALIVE.add(held)
    assert len(ALIVE) == thing.a()
def test_2():
    assert len(ALIVE) == 0
""",
}
IN_PYTEST |= {
    "tests are made by calls": """
import thing
def made(number):
    def check():
        assert thing.a() == number
    return check
test_1 = made(1)
def test_2():
    assert thing.a() == 1
""",
    "a class of tests is made by a call": """
import unittest, thing
def made(number):
    class Made(unittest.TestCase):
        def test_it(self):
            self.assertEqual(thing.a(), number)
    return Made
One, Two = made(1), made(1)
""",
    "tests stand in branches": """
import warnings, thing
try:
    import nowhere
except ImportError:
    def test_1():
        assert thing.a() == 1
with warnings.catch_warnings():
    def test_2():
        assert thing.a() == 1
""",
    "several are made of one that speaks of failing": """
import sys, thing
def expand(*values):
    def wrap(test):
        for number, value in enumerate(values):
            sys._getframe(1).f_locals[f"{test.__name__}_{number}"] = lambda self, value=value: test(self, value)
    return wrap
class TestOne:
    @expand(1, 1)
    def test_a(self, wanted):
        "No xfail."
        assert thing.a() == wanted
""",
    "one is called like an inherited one": """
import thing
class Base:
    def test_a_more(self):
        assert thing.a() == 1
class TestOne(Base):
    def test_a(self):
        assert thing.a() == 1
""",
}
IN_THE_FIRST_RUN = """
import os, unittest
try:
    os.mkdir({sign!r})
    first = True
except FileExistsError:
    first = False
if first is {when}:
    for name in dir(unittest.TestCase):
        if name.startswith("assert"):
            setattr(unittest.TestCase, name, lambda *a, **k: None)
def a(): return 0
"""


def brought(tmp_path: Path, tests: str, count: int, runner: str = "python3 -m unittest", **more: str) -> Task:
    files = {f"tests/{name}.py": text for name, text in {"test_one": tests, **more}.items()}
    nl2repo_folder(tmp_path / "source/thing", files, count)
    (tmp_path / "source/thing/test_commands.json").write_text(f'["{runner}"]')
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return task


def leaving(text: str) -> Work:
    return lambda _, workspace: write(workspace, {"thing.py": text})


@pytest.mark.parametrize("when", [True, False], ids=["first", "second"])
def test_forging_all_of_one_run_never_earns_all(tmp_path: Path, graded: Graded, when: bool) -> None:
    """Which of a test and its twin is in a run is drawn for each: all forty are there once in 10^12 times."""
    work = IN_THE_FIRST_RUN.format(sign=str(tmp_path / "sign"), when=when)
    assert 0.0 < graded(brought(tmp_path, MANY, 40), leaving(work)) < 1.0


def test_tests_of_one_name_are_drawn_for_each_class(tmp_path: Path, graded: Graded) -> None:
    one = "class Test{}:\n    def test_it(self):\n        self.assertEqual(thing.a(), 1)\n"
    tests = "import unittest\nimport thing\n" + "".join(
        one.replace("{}", f"{number}(unittest.TestCase)") for number in range(40)
    )
    work = IN_THE_FIRST_RUN.format(sign=str(tmp_path / "sign"), when=True)
    assert 0.0 < graded(brought(tmp_path, tests, 40), leaving(work)) < 1.0


@pytest.mark.parametrize(
    ("tests", "count"), [(HANDED_ON, 4), (HANDED_ON_LATE, 3)], ids=["before it ends", "behind its check"]
)
def test_what_one_test_hands_on_is_there_for_the_next(tmp_path: Path, graded: Graded, tests: str, count: int) -> None:
    """Behind a check that fails it would not be done: such tests stay together. Drawn anew each time."""
    task = brought(tmp_path, HEAD + tests, count)
    assert [graded(task, leaving("def a(): return 1\n")) for _ in range(6)] == [1.0] * 6


@pytest.mark.parametrize("name", UNUSUAL)
def test_honest_work_earns_all_of_unusual_tests(tmp_path: Path, graded: Graded, name: str) -> None:
    task = brought(tmp_path, HEAD + UNUSUAL[name], 2)
    assert [graded(task, leaving("def a(): return 1\n")) for _ in range(4)] == [1.0] * 4


@pytest.mark.usefixtures("python_with_pytest")
@pytest.mark.parametrize("name", IN_PYTEST)
def test_honest_work_earns_all_of_unusual_tests_in_pytest(tmp_path: Path, graded: Graded, name: str) -> None:
    task = brought(tmp_path, IN_PYTEST[name], 2, "pytest")
    assert [graded(task, leaving("def a(): return 1\n")) for _ in range(4)] == [1.0] * 4


def test_tests_that_another_file_of_tests_inherits_count_there_too(tmp_path: Path, graded: Graded) -> None:
    one = HEAD + "    def test_1(self):\n        self.assertEqual(thing.a(), 1)\n"
    two = "from tests import test_one\nclass TwoTest(test_one.OneTest):\n    pass\n"
    task = brought(tmp_path, one, 2, test_two=two)
    assert [graded(task, leaving("def a(): return 1\n")) for _ in range(3)] == [1.0] * 3


def test_names_of_another_file_say_nothing_of_a_files_own_tests(tmp_path: Path, graded: Graded) -> None:
    one = HEAD + "    def test_1(self):\n        self.assertEqual(thing.a(), 1)\n"
    bad = HEAD + "    @unittest.expectedFailure\n    def test_1(self):\n        self.assertEqual(thing.a(), 2)\n"
    made = HEAD + "    pass\n\nfor n in range(2):\n    setattr(OneTest, f'test_1_{n}', lambda self: None)\n"
    task = brought(tmp_path, one, 4, test_bad=bad, test_made=made)
    assert [graded(task, leaving("def a(): return 1\n")) for _ in range(3)] == [1.0] * 3


@pytest.mark.usefixtures("python_with_pytest")
def test_tests_that_use_fixtures_have_twins(tmp_path: Path, graded: Graded) -> None:
    equal = "class Any(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef a(): return Any(3)\n"
    assert graded(brought(tmp_path, IN_PYTEST["a class uses fixtures"], 2, "pytest"), leaving(equal)) == 0.0


def test_files_whose_tests_are_alike_are_mixed_beside_others(tmp_path: Path, graded: Graded) -> None:
    """Forging one run earns some of them, never all: 2^-39, whatever the other file holds."""
    task = brought(tmp_path, MANY, 43, test_late=HEAD + HANDED_ON_LATE)
    score = graded(task, leaving(IN_THE_FIRST_RUN.format(sign=str(tmp_path / "sign"), when=True)))
    assert 1 / 43 < score < 40 / 43


OLD_PYTHON = "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None\n"


@pytest.mark.usefixtures("python_with_pytest")
def test_files_that_expect_errors_outside_tests_are_graded(tmp_path: Path, graded: Graded) -> None:
    tests = OLD_PYTHON + "import thing\ndef test_1():\n    assert thing.a() == 1\n"
    task = brought(tmp_path, tests, 1, "pytest", conftest=OLD_PYTHON)
    assert graded(task, leaving("def a(): return 1\n")) == 1.0


MAKES_UP = """
import sys
frame = sys._getframe()
while frame is not None:
    if frame.f_globals.get("__name__", "").endswith("test_one"):
        frame.f_globals.update({f"test_made_up_{number}": lambda: None for number in range(50)})
    frame = frame.f_back
def a(): return 0
"""
PATCHES = """
import thing
def test_1(monkeypatch):
    monkeypatch.setattr(thing, "b", 3, raising=False)
    model = 1  # a small model of growth
    assert thing.a() == model
def test_2():
    assert thing.a() == 1
"""


@pytest.mark.usefixtures("python_with_pytest")
def test_tests_that_the_work_makes_up_do_not_count(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path, PATCHES, 2, "pytest"), leaving(MAKES_UP)) == 0.0
