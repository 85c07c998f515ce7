"""Tests that are known by their names alone: inherited, made by code, or made up by the work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from tests.tasks.test_grader_twins import MAKES_UP, brought, leaving

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
BESIDE = {
    "one that is expected to fail": """
import pytest, thing
class Base:
    def test_a(self):
        assert thing.a() == 1
class TestOne(Base):
    pass
class TestTwo(Base):
    @pytest.mark.xfail(strict=True)
    def test_a(self):
        assert thing.a() == 2
""",
    "one of a class that a function makes": """
import unittest, thing
def made(number):
    class Made(unittest.TestCase):
        def test_it(self):
            self.assertEqual(thing.a(), number)
    return Made
One = made(1)
class Base:
    def test_it(self):
        assert thing.a() == 1
class TestSub(Base):
    pass
""",
    "one of another base": """
import pytest, thing
class Base:
    def test_a(self):
        assert thing.a() == 1
class Other(Base):
    @pytest.mark.xfail
    def test_a(self):
        assert thing.a() == 2
class TestOne(Base):
    pass
class TestTwo(TestOne, Other):
    pass
""",
}
MADE = """
import thing
def made(number):
    def check():
        assert thing.a() == number
    return check
NAMED = {"x": made(1), "y": made(1)}
class TestNothing:
    pass
"""
NAMES = {
    "in pairs": "test_1, test_2 = made(1), made(1)",
    "from one": "test_1, test_2 = (made(1) for _ in range(2))",
    "where a list is made": "[test_1 := made(1), test_2 := made(1)]",
    "by a loop": "for test_1 in (made(1),):\n    test_2 = test_1",
    "by a choice": "test_1 = made(1) if thing else None\ntest_2 = None or made(1)",
    "from a table": "test_1 = NAMED['x']\ntest_2: object = NAMED['y']",
    "in a class": "TestNothing.test_1 = TestNothing.test_2 = staticmethod(made(1))",
}


@pytest.mark.usefixtures("python_with_pytest")
@pytest.mark.parametrize("name", BESIDE)
def test_a_test_that_is_inherited_beside_one_without_a_twin_counts(tmp_path: Path, graded: Graded, name: str) -> None:
    """They have one name, and each draws anew in which run the twin is."""
    task = brought(tmp_path, BESIDE[name], 2, "pytest")
    assert [graded(task, leaving("def a(): return 1\n")) for _ in range(10)] == [1.0] * 10


@pytest.mark.usefixtures("python_with_pytest")
@pytest.mark.parametrize("name", NAMES)
def test_tests_count_in_whatever_form_they_get_their_names(tmp_path: Path, graded: Graded, name: str) -> None:
    task = brought(tmp_path, f"{MADE}{NAMES[name]}\n", 2, "pytest")
    assert graded(task, leaving("def a(): return 1\n")) == 1.0


SKIPS = """
import unittest, pytest, thing
class TestOne(unittest.TestCase):
    def setUp(self):
        self.{kept} = test_made = thing.a()
    @unittest.skipIf(False, "never")
    def test_1(self):
        self.assertEqual(thing.a(), 1)
    @unittest.skipIf(False, "never")
    def test_2(self):
        self.assertEqual(thing.a(), 1)
"""
FAILING = """    @pytest.mark.xfail
    def test_made_up(self):
        self.assertEqual(thing.a(), 7)
"""
SKIPPING = {
    "what setUp keeps is called test": SKIPS.format(kept="test"),
    "what setUp keeps is called like it": SKIPS.format(kept="test_made_up_7"),
    "one that fails begins like it": SKIPS.format(kept="kept") + FAILING,
    "data is called like it": SKIPS.format(kept="kept") + "test_made_up_7 = [1, 2]\n",
}


@pytest.mark.usefixtures("python_with_pytest")
@pytest.mark.parametrize("name", SKIPPING)
def test_tests_that_the_work_makes_up_do_not_count_by_their_names(tmp_path: Path, graded: Graded, name: str) -> None:
    count = 2 + SKIPPING[name].count("pytest.mark.xfail")
    own = 1 / 3 if count == 3 else 0.0  # the one that is expected to fail does so
    assert graded(brought(tmp_path, SKIPPING[name], count, "pytest"), leaving(MAKES_UP)) == pytest.approx(own, abs=0.01)
