"""Tests that the agent has in its workspace: nothing that it knows of them tells it which run is the true one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from tests.tasks.layouts import FIXED, SOURCE, patch, swe_folder

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
HEAD = "import unittest\n\nimport halves\n\n\n"
KNOWN = """class OldTest(unittest.TestCase):
    def test_basic(self):
        self.assertEqual(halves.half(0), 0)
"""
KNOWN_UNLIKE = KNOWN + "        self.kept = 1\n"
NEW = """

class HalfTest(unittest.TestCase):
    def test_basic(self):
        self.assertEqual(halves.half(4), 2)

    def test_ten(self):
        self.assertEqual(halves.half(10), 5)
        self.kept = 1
"""
WANTED = ["HalfTest::test_basic", "HalfTest::test_ten"]
INHERITED = """

class AgainTest(OldTest):
    def test_twelve(self):
        self.assertEqual(halves.half(12), 6)
"""
FORGED = """
import os, sys, unittest
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_halves.py")) as file:
    true = {known!r} in file.read()
def run(self, result=None):
    result.startTest(self)
    if true and type(self).__name__ != "Canary":
        result.addSuccess(self)
    else:
        try:
            raise AssertionError
        except AssertionError:
            result.addFailure(self, sys.exc_info())
    result.stopTest(self)
unittest.TestCase.run = run
"""


def brought(tmp_path: Path, old: str, new: str, wanted: list[str], kept: list[str]) -> Task:
    changes = {
        "test_patch": patch("test_halves.py", old, new),
        "FAIL_TO_PASS": json.dumps([f"test_halves.py::{name}" for name in wanted]),
        "PASS_TO_PASS": json.dumps([f"test_halves.py::{name}" for name in kept]),
    }
    swe_folder(tmp_path / "source/halves", {"test_halves.py": old}, patch=patch("halves.py", SOURCE, FIXED), **changes)
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return task


def leaving(text: str) -> Work:
    return lambda _, workspace: (workspace / "halves.py").write_text(text) and None


@pytest.mark.parametrize("known", [KNOWN, KNOWN_UNLIKE], ids=["alike", "one leaves something behind"])
def test_a_test_that_the_agent_knows_does_not_tell_it_which_run_is_true(
    tmp_path: Path, graded: Graded, known: str
) -> None:
    """Both where all of a file share one draw, and where tests of one name did."""
    task = brought(
        tmp_path,
        HEAD + known,
        HEAD + known + NEW,
        ["HalfTest::test_basic", "HalfTest::test_ten"],
        ["OldTest::test_basic"],
    )
    assert json.loads((task.tests / "expected.json").read_text())["known"] == {"test_halves.py": ["OldTest.test_basic"]}
    assert [graded(task, leaving(FORGED.format(known=known))) for _ in range(3)] == [0.0] * 3
    assert graded(task, leaving(FIXED)) == 1.0


def test_a_known_test_counts_where_it_is_inherited_too(tmp_path: Path, graded: Graded) -> None:
    wanted = [*WANTED, "AgainTest::test_twelve"]
    kept = ["OldTest::test_basic", "AgainTest::test_basic"]
    task = brought(tmp_path, HEAD + KNOWN, HEAD + KNOWN + NEW + INHERITED, wanted, kept)
    assert [graded(task, leaving(FIXED)) for _ in range(3)] == [1.0] * 3
    assert graded(task, leaving(SOURCE)) < 1.0


def test_what_is_only_written_otherwise_or_elsewhere_is_known(tmp_path: Path) -> None:
    new = HEAD + KNOWN.replace("OldTest", "NewTest").replace("half(0), 0", "half( 0 ),  0") + NEW
    task = brought(tmp_path, HEAD + KNOWN, new, ["HalfTest::test_basic"], ["NewTest::test_basic"])
    assert json.loads((task.tests / "expected.json").read_text())["known"] == {"test_halves.py": ["NewTest.test_basic"]}


EQUALS_ALL = """
class All:
    __eq__ = lambda *_: True
    __hash__ = None
def half(number): return All()
"""
LISTED = """import halves, pytest

@pytest.mark.parametrize("number, wanted", [(0, 0)])
def test_half(number, wanted):
    assert halves.half(number) == wanted
"""
GIVEN = """class HalfTest(unittest.TestCase):
    cases = [(0, 0)]
    def test_all(self):
        number, half = self.cases[-1]
        self.assertEqual(halves.half(number), half)
"""
MORE_DATA = {
    "parameters": (LISTED, ["test_half[4-2]", "test_half[10-5]"]),
    "a class's data": (HEAD + GIVEN, ["HalfTest::test_all"]),
    "data of what inherits": (HEAD + GIVEN + "\nclass AgainTest(HalfTest):\n    pass\n", ["AgainTest::test_all"]),
}


@pytest.mark.usefixtures("python_with_pytest")
@pytest.mark.parametrize("name", MORE_DATA)
def test_a_wanted_test_that_only_has_new_data_is_not_earned_by_what_equals_all(
    tmp_path: Path, graded: Graded, name: str
) -> None:
    old, wanted = MORE_DATA[name]
    task = brought(tmp_path, old, old.replace("[(0, 0)]", "[(0, 0), (4, 2), (10, 5)]"), wanted, [])
    assert graded(task, leaving(EQUALS_ALL)) == 0.0
    assert [graded(task, leaving(FIXED)) for _ in range(4)] == [1.0] * 4


@pytest.mark.parametrize("unlike", ["", "        self.kept = 1\n"], ids=["alike", "one leaves something behind"])
def test_a_wanted_test_that_the_agent_knows_tells_it_of_no_other(tmp_path: Path, graded: Graded, unlike: str) -> None:
    """It stands in one run of the two, drawn by itself; where all of its file are in one, it has no twin."""
    new = NEW + "".join(
        f"\n    def test_{number}(self):\n        self.assertEqual(halves.half({2 * number}), {number})\n"
        for number in range(3, 23)
    )
    wanted = ["OldTest::test_basic", *WANTED, *(f"HalfTest::test_{number}" for number in range(3, 23))]
    new = new.replace("        self.kept = 1\n", unlike)
    task = brought(tmp_path, HEAD + KNOWN, HEAD + KNOWN + new, wanted, [])
    assert graded(task, leaving(FORGED.format(known=KNOWN))) == 0.0
    assert [graded(task, leaving(FIXED)) for _ in range(3)] == [1.0] * 3


MIXED = """class Base:
    def test_basic(self):
        self.assertEqual(halves.half({number}), {half})

class HalfTest(Base, unittest.TestCase):
    pass

class OtherTest(Base, unittest.TestCase):
    def test_basic(self):
        self.assertEqual(halves.half(0), 0)
"""


def test_a_test_that_is_inherited_beside_a_known_one_of_its_name_is_earned(tmp_path: Path, graded: Graded) -> None:
    old, new = (HEAD + MIXED.format(number=number, half=number // 2) for number in (0, 4))
    task = brought(tmp_path, old, new, ["HalfTest::test_basic"], ["OtherTest::test_basic"])
    assert [graded(task, leaving(FIXED)) for _ in range(10)] == [1.0] * 10
    assert graded(task, leaving(EQUALS_ALL)) == 0.0
