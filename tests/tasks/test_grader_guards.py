"""Each guard of the grader by itself, without the twins where those would hold as well."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from tests.tasks.layouts import FIXED, NEW_TEST, nl2repo_folder, swe_folder, write

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
RIGHT = "def a(): return 1\ndef b(): return 2\n"
WRONG = "def a(): return 0\nb = a\n"
ONE = """
    import unittest
    import thing

    class OneTest(unittest.TestCase):
        def test_a(self):
            self.assertEqual(thing.a(), 1)

        def test_b(self):
            self.assertEqual(thing.b(), 2)
    """


def brought(tmp_path: Path, count: int = 2, *, twins: bool = True, tests: dict[str, str] | None = None) -> Task:
    texts = {f"tests/{name}.py": textwrap.dedent(text) for name, text in (tests or {"test_one": ONE}).items()}
    nl2repo_folder(tmp_path / "source/thing", texts, count)
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return told(task, twins=twins)


def told(task: Task, **changes: object) -> Task:
    expected = task.tests / "expected.json"
    expected.write_text(json.dumps({**json.loads(expected.read_text()), **changes}))
    return task


def leaving(text: str, **files: str) -> Work:
    texts = {"thing.py": textwrap.dedent(text), **{name: textwrap.dedent(each) for name, each in files.items()}}
    return lambda _, workspace: write(workspace, texts)


LISTS = """
    import os
    import unittest

    class Listed(unittest.TestCase):
        def test_files(self):
            found = [os.path.relpath(os.path.join(top, name)) for top, folders, files in os.walk(".")
                     for name in (*folders, *files) if not name.startswith("test")]
            self.assertEqual(sorted(found), ["closed", "closed/file", "thing.py"])

        def test_modes(self):
            self.assertTrue(os.stat("closed").st_mode & 0o700 == 0o700)

        def test_mode_of_a_file(self):
            self.assertTrue(os.stat("closed/file").st_mode & 0o400)
    """


def test_nothing_that_runs_by_itself_nor_is_a_file_or_a_folder_is_in_the_copy(tmp_path: Path, graded: Graded) -> None:
    task = brought(tmp_path, 3, tests={"test_one": LISTS})
    names = ["a.pth", "a.pyc", "a.egg-link", ".git/config", "__pycache__/thing.pyc", "a.egg-info/x", "a.dist-info/x"]
    guarded = json.loads((task.tests / "expected.json").read_text())["guarded"]

    def work(_: Task, workspace: Path) -> None:
        write(workspace, dict.fromkeys([*names, *guarded, "thing.py", "closed/file"], ""))
        (workspace / "nowhere").symlink_to("gone")
        os.mkfifo(workspace / "pipe")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(workspace / "s"))
        (workspace / "closed/file").chmod(0)
        (workspace / "closed").chmod(0)

    assert graded(task, work) == 1.0


BESIDE = """
    import os
    import unittest
    import thing

    class OneTest(unittest.TestCase):
        def test_a(self):
            self.assertEqual([name for name in os.listdir(os.path.dirname(__file__)) if "case" in name], [])

        def test_b(self):
            self.assertEqual(thing.b(), 2)
    """


def test_what_the_work_has_under_the_tests_names_is_gone_before_they_are_laid(tmp_path: Path, graded: Graded) -> None:
    task = brought(tmp_path, tests={"test_one": BESIDE})
    assert graded(task, leaving(RIGHT, **{"tests/case.txt": "", "tests/cases/1": ""})) == 1.0


def test_a_file_that_the_test_patch_takes_away_is_not_the_works_to_keep(tmp_path: Path, graded: Graded) -> None:
    gone = (
        "diff --git a/old.txt b/old.txt\ndeleted file mode 100644\n--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
    )
    asked = "(halves.half(4), __import__('os').path.exists('old.txt')), (2, False)"
    swe_folder(tmp_path / "source/halves", {"old.txt": "old\n"})
    instance = tmp_path / "source/halves/instance.json"
    known = json.loads(instance.read_text())
    added = known["test_patch"].replace("halves.half(4), 2", asked)
    instance.write_text(json.dumps({**known, "test_patch": added + gone}))
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    assert graded(task, lambda _, workspace: write(workspace, {"halves.py": FIXED, "old.txt": "kept"})) == 1.0


def test_a_file_where_a_folder_of_tests_belongs_gives_way(tmp_path: Path, graded: Graded) -> None:
    assert graded(told(brought(tmp_path), remove=[]), leaving(RIGHT, tests="not a folder")) == 1.0


UNTIL = textwrap.dedent("""
    import unittest
    whole = unittest.TestCase.fail, unittest.TestCase.assertEqual
    def spoil():
        unittest.TestCase.fail = unittest.TestCase.assertEqual = lambda *a, **k: None
    def mend():
        unittest.TestCase.fail, unittest.TestCase.assertEqual = whole
    """)


def test_what_is_spoilt_before_the_tests_and_mended_after_them_does_not_count(tmp_path: Path, graded: Graded) -> None:
    spoilt_first = UNTIL + "spoil()\ndef a(): return 0\ndef b():\n    mend()\n    return 2\n"
    assert graded(brought(tmp_path, twins=False), leaving(spoilt_first)) == 0.0


def test_what_is_spoilt_only_by_the_first_question_does_not_count(tmp_path: Path, graded: Graded) -> None:
    spoilt_later = UNTIL + "def a():\n    spoil()\n    return 0\ndef b(): return 0\n"
    assert graded(brought(tmp_path, twins=False), leaving(spoilt_later)) == 0.0


def test_what_is_spoilt_does_not_count_as_far_as_it_came(tmp_path: Path, graded: Graded) -> None:
    hangs = UNTIL + "spoil()\ndef a(): return 0\ndef b():\n    while True: pass\n"
    assert graded(told(brought(tmp_path, twins=False), seconds=2.5), leaving(hangs)) == 0.0


SAY = textwrap.dedent("""
    import sys
    def forge(outcome, *names):
        frame = sys._getframe()
        while frame is not None:
            for value in list(frame.f_locals.values()):
                if hasattr(value, "say"):
                    for name in names:
                        value.say(name, outcome)
                    return
            frame = frame.f_back
    """)


NOTHING = "def a(): return 0\nb = a\n"


def test_a_file_speaks_for_its_own_tests_alone(tmp_path: Path, graded: Graded) -> None:
    tests = {"test_one": ONE, "test_two": ONE.replace("OneTest", "TwoTest")}
    task = brought(tmp_path, 4, twins=False, tests=tests)
    name = '"tests/test_one.py::OneTest::test_a", "tests/test_one.py::OneTest::test_b"'
    text = f"{SAY}if 'tests.test_one' not in sys.modules:\n    forge('passed', {name})\n{NOTHING}"
    assert graded(task, leaving(text)) == 0.0


def test_tests_that_were_never_written_do_not_count(tmp_path: Path, graded: Graded) -> None:
    text = f'{SAY}forge("passed", "tests/test_one.py::OneTest::x", "tests/test_one.py::y")\n{NOTHING}'
    assert graded(brought(tmp_path), leaving(text)) == 0.0


def test_more_tests_than_are_counted_are_no_more_than_all(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path, 1), leaving(RIGHT)) == 1.0


def test_a_test_is_skipped_only_where_the_tests_speak_of_it(tmp_path: Path, graded: Graded) -> None:
    swe_folder(tmp_path / "source/halves")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    forges = 'forge("skipped", "test_halves.py::HalfTest::test_nothing")'
    breaks = f"{SAY}def half(n):\n    n == 10 and {forges}\n    return n // 2 or 7\n"
    assert graded(task, lambda _, workspace: write(workspace, {"halves.py": breaks})) == 0.0


EXPECTED_TO_FAIL = """
    import unittest
    import thing

    class OneTest(unittest.TestCase):
        @unittest.expectedFailure
        def test_a(self):
            self.assertEqual(thing.a(), 7)

        def test_b(self):
            self.assertEqual(thing.b(), 2)
    """
INHERITED = "import unittest\nfrom tests.base import Base\n\nclass OneTest(Base, unittest.TestCase):\n    pass\n"
BASE = ONE.replace("OneTest(unittest.TestCase)", "Base")
MADE = """
    import unittest
    import thing

    class OneTest(unittest.TestCase):
        pass

    for name, wanted in (("a", 1), ("b", 2)):
        setattr(OneTest, f"test_{name}", lambda self, n=name, w=wanted: self.assertEqual(getattr(thing, n)(), w))
    """
SPREAD = """
    import unittest
    import thing

    class OneTest(unittest.TestCase):
        def test_a(self):
            self.assertEqual(thing.a(), 1)

    OneTest.test_a_0 = OneTest.test_a_1 = OneTest.test_a
    del OneTest.test_a
    """


@pytest.mark.parametrize(
    "tests",
    [
        {"test_one": EXPECTED_TO_FAIL},
        {"__init__": "", "base": BASE, "test_one": INHERITED},
        {"test_one": MADE},
        {"test_one": SPREAD},
    ],
    ids=["expected to fail", "inherited", "made", "spread"],
)
def test_tests_that_stand_nowhere_as_they_are_called_count_for_honest_work(
    tmp_path: Path, graded: Graded, tests: dict[str, str]
) -> None:
    assert graded(brought(tmp_path, tests=tests), leaving(RIGHT)) == 1.0


def test_what_equals_everything_earns_nothing_in_tests_that_were_spread(tmp_path: Path, graded: Graded) -> None:
    anything = (
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef a(): return Any(0)\n"
    )
    assert graded(brought(tmp_path, tests={"test_one": SPREAD}), leaving(anything)) == 0.0


def test_a_named_test_counts_however_it_came_about(tmp_path: Path, graded: Graded) -> None:
    made = NEW_TEST.replace("    def test_four(self):\n        self", "    vars()['test_four'] = lambda self: self")
    swe_folder(tmp_path / "source/halves")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    (task.tests / "lay/test_halves.py").write_text(made)
    assert graded(task, lambda _, workspace: write(workspace, {"halves.py": FIXED})) == 1.0


BUSY = """
    import os, sys
    while True:
        for number in range(2000):
            os.mkdir(f"{sys.argv[1]}/{number}")
        for number in range(2000):
            os.rmdir(f"{sys.argv[1]}/{number}")
    """


def test_folders_that_come_and_go_beside_the_tests_take_nothing_from_honest_work(
    tmp_path: Path, graded: Graded
) -> None:
    task = brought(tmp_path, tests={"test_one": ONE})
    others = [sys.executable, "-c", textwrap.dedent(BUSY), str(task.tests.parent)]
    with subprocess.Popen(others) as busy:
        try:
            assert [graded(task, leaving(RIGHT)) for _ in range(3)] == [1.0] * 3
        finally:
            busy.kill()


MOVES = """
    import os
    import unittest
    import thing

    class OneTest(unittest.TestCase):
        def test_a(self):
            for name in ("from", "to"):
                os.mkdir(name)
            with open("from/file", "w") as file:
                file.write(str(thing.a()))
            os.rename("from/file", "to/file")
            os.link("to/file", "from/again")
            self.assertEqual(open("from/again").read(), "1")
    """


def test_files_move_between_folders_while_the_tests_folder_is_closed(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path, 1, tests={"test_one": MOVES}), leaving(RIGHT)) == 1.0


def test_a_run_that_never_began_is_no_verdict_on_the_work(tmp_path: Path, graded: Graded) -> None:
    """Nor is what lies where the reward belongs one."""
    reward = tmp_path / "judge/reward/reward.txt"

    def work(task: Task, workspace: Path) -> None:
        leaving(RIGHT)(task, workspace)
        reward.write_text("1.0")

    with pytest.raises(subprocess.CalledProcessError) as ended:
        graded(told(brought(tmp_path), seconds=0.001), work)
    assert ended.value.returncode == 125
    assert not reward.exists()
