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


def brought(tmp_path: Path, tests: str, count: int) -> Task:
    nl2repo_folder(tmp_path / "source/thing", {"tests/test_one.py": tests}, count)
    (tmp_path / "source/thing/test_commands.json").write_text('["python3 -m unittest"]')
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return task


def leaving(text: str) -> Work:
    return lambda _, workspace: write(workspace, {"thing.py": text})


@pytest.mark.parametrize("when", [True, False], ids=["first", "second"])
def test_forging_all_of_one_run_never_earns_all(tmp_path: Path, graded: Graded, when: bool) -> None:
    """Which of a test and its twin is in a run is drawn for each: all forty are there once in 10^12 times."""
    work = IN_THE_FIRST_RUN.format(sign=str(tmp_path / "sign"), when=when)
    assert 0.0 < graded(brought(tmp_path, MANY, 40), leaving(work)) < 1.0


@pytest.mark.parametrize(
    ("tests", "count"), [(HANDED_ON, 4), (HANDED_ON_LATE, 3)], ids=["before it ends", "behind its check"]
)
def test_what_one_test_hands_on_is_there_for_the_next(tmp_path: Path, graded: Graded, tests: str, count: int) -> None:
    """Behind a check that fails it would not be done: such tests stay together. Drawn anew each time."""
    task = brought(tmp_path, HEAD + tests, count)
    assert [graded(task, leaving("def a(): return 1\n")) for _ in range(6)] == [1.0] * 6
