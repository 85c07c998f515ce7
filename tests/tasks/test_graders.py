"""The grader of Python tests: what an agent leaves to be run by itself, and results that it would like to have."""

import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from tests.tasks.layouts import nl2repo_folder, write

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
TESTS = {
    "tests/__init__.py": "",
    "tests/test_one.py": """
        import unittest
        import thing

        class OneTest(unittest.TestCase):
            def test_a(self):
                self.assertEqual(thing.a(), 1)

            def test_b(self):
                self.assertEqual(thing.b(), 2)
        """,
    "tests/test_two.py": """
        import unittest
        import thing

        class TwoTest(unittest.TestCase):
            def test_c(self):
                self.assertEqual(thing.c(), 3)

            def test_d(self):
                for number in range(3):
                    with self.subTest(number=number):
                        self.assertEqual(thing.d(number), number)
        """,
}
GOOD = "def a():\n    return 1\n\n\ndef b():\n    return 2\n\n\ndef c():\n    return 3\n\n\ndef d(x):\n    return x\n"
BAD = "def a():\n    return 0\n\n\ndef b():\n    return 0\n\n\ndef c():\n    return 0\n\n\ndef d(x):\n    return 7\n"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    tests = {name: textwrap.dedent(text) for name, text in TESTS.items()}
    nl2repo_folder(tmp_path / "source/thing", tests, 4)
    (found,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return found


def without_twins(task: Task) -> Task:
    """Whatever else holds has to hold without them."""
    return told(task, twins=False)


def told(task: Task, **changes: object) -> Task:
    """A task whose grader is told something else."""
    expected = task.tests / "expected.json"
    expected.write_text(json.dumps({**json.loads(expected.read_text()), **changes}))
    return task


def leaving(files: dict[str, str]) -> Work:
    dedented = {name: textwrap.dedent(text) for name, text in files.items()}
    return lambda _, workspace: write(workspace, dedented)


def test_the_share_of_passed_tests_is_the_reward(task: Task, graded: Graded) -> None:
    assert graded(task, leaving({"thing.py": GOOD})) == 1.0
    assert graded(task, leaving({"thing.py": BAD})) == 0.0
    assert graded(task, leaving({"thing.py": BAD.replace("return 0", "return 1", 1)})) == 0.25
    assert graded(task, leaving({"src/thing/__init__.py": GOOD})) == 1.0


def test_a_package_that_cannot_be_imported_earns_nothing(task: Task, graded: Graded) -> None:
    assert graded(task, leaving({"thing.py": "raise SystemError('no')"})) == 0.0
    assert graded(task, leaving({"thing.py": "import os\nos._exit(0)"})) == 0.0
    assert graded(task, leaving({"thing.py": "raise SystemExit(0)"})) == 0.0
    assert graded(task, leaving({"thing.py": "import os, signal\nos.kill(os.getpid(), 11)"})) == 0.0


def test_one_failing_part_fails_its_test(task: Task, graded: Graded) -> None:
    assert graded(task, leaving({"thing.py": GOOD.replace("return x", "return min(x, 1)")})) == 0.75


ALWAYS_RIGHT = "class Right:\n    def __eq__(self, other):\n        return True\n"
FORGE = """
    import unittest
    unittest.TestCase.run = lambda self, result=None: result.addSuccess(self)
    """
PATCH_EVERYTHING = """
    import sys, unittest
    for name in ("assertEqual", "assertTrue", "fail"):
        setattr(unittest.TestCase, name, lambda *a, **k: None)
    def a(): return 0
    b = c = a
    def d(x): return 7
    """
WRITE_RESULTS = """
    import json, os, time
    def a():
        for descriptor in range(3, 64):
            for mark in ("", "0" * 32):
                for test in ("test_one.py::OneTest::test_a", "test_one.py::OneTest::test_b"):
                    try:
                        os.write(descriptor, f"{mark} passed {json.dumps('tests/' + test)}\\n".encode())
                    except OSError:
                        pass
        time.sleep(60)
    b = c = d = lambda *_: None
    """
SPOIL_REWARD = """
    import os, subprocess, sys
    told = open(f"/proc/{os.getppid()}/environ").read().split("\\0")
    reward = next(each for each in told if each.startswith("REWARD_FILE=")).partition("=")[2]
    code = "import sys, time\\nwhile True:\\n open(sys.argv[1], 'w').write('1.0')\\n time.sleep(0.001)"
    subprocess.Popen([sys.executable, "-c", code, reward], start_new_session=True)
    def a(): return 0
    b = c = a
    def d(x): return 7
    """


@pytest.mark.parametrize(
    "files",
    [
        {"thing.py": BAD, "conftest.py": FORGE, "tests/conftest.py": FORGE},
        {"thing.py": BAD, "sitecustomize.py": FORGE, "usercustomize.py": FORGE, "src/sitecustomize.py": FORGE},
        {"thing.py": BAD, "evil.pth": "import unittest; unittest.TestCase.run = lambda s, r=None: r.addSuccess(s)\n"},
        {"thing.py": BAD, "unittest.py": FORGE, "unittest/__init__.py": FORGE, "json.py": FORGE},
        {"thing.py": BAD, "pytest.ini": "[pytest]\naddopts = -p thing\n", "pyproject.toml": "[tool.pytest]\n"},
        {"thing.py": BAD, "thing.egg-info/entry_points.txt": "[pytest11]\nx = thing\n"},
        {"thing.py": BAD, "tests/test_one.py": "", "tests/test_two.py": "", "tests/__init__.py": FORGE},
        {"thing.py": BAD, "tests/test_more.py": "import unittest\n", "test_extra.py": FORGE},
        {"thing.py": FORGE},
        {"thing.py": PATCH_EVERYTHING},
        {"thing.py": SPOIL_REWARD},
        {"thing.py": BAD, "reward.txt": "1.0\n", "expected.json": "{}", "grade.py": "print(1)", "lay/x": ""},
    ],
    ids="+".join,
)
def test_a_forged_result_earns_nothing(task: Task, graded: Graded, files: dict[str, str]) -> None:
    if "unittest.py" in files:
        files = {name: text for name, text in files.items() if name != "unittest/__init__.py"}
    assert graded(without_twins(task), leaving(files)) == 0.0


def test_a_link_where_the_tests_are_laid_is_not_followed(task: Task, graded: Graded, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def link(_: Task, workspace: Path) -> None:
        write(workspace, {"thing.py": GOOD})
        (workspace / "tests").symlink_to(outside)
        (workspace / "loop").symlink_to("loop")

    assert graded(task, link) == 1.0
    assert graded(told(task, remove=[]), link) == 1.0
    assert list(outside.iterdir()) == []


def hasten(task: Task) -> None:
    """A file of tests may take two seconds and a half."""
    told(task, seconds=2.5)


def test_tests_of_a_file_that_hangs_count_as_far_as_they_came(task: Task, graded: Graded) -> None:
    hasten(task)
    assert graded(task, leaving({"thing.py": GOOD.replace("return 2", "while True: pass")})) == 0.75


def test_results_that_do_not_bear_the_mark_are_not_heard(task: Task, graded: Graded) -> None:
    hasten(task)
    assert graded(without_twins(task), leaving({"thing.py": WRITE_RESULTS})) == 0.0


def test_modes_of_the_agents_files_are_no_hindrance(task: Task, graded: Graded) -> None:
    def close(_: Task, workspace: Path) -> None:
        write(workspace, {"thing.py": GOOD, "closed/file": "x"})
        (workspace / "closed/file").chmod(0)
        (workspace / "closed").chmod(0)

    assert graded(task, close) == 1.0


def test_a_flood_of_results_is_no_result(task: Task, graded: Graded) -> None:
    flood = """
        import os
        def a():
            while True:
                for descriptor in range(3, 64):
                    try:
                        os.write(descriptor, b"x" * 65536)
                    except OSError:
                        pass
        b = c = d = a
        """
    assert graded(task, leaving({"thing.py": flood})) == 0.0


def test_the_work_itself_is_left_as_it_was(task: Task, graded: Graded) -> None:
    seen: list[Path] = []

    def work(_: Task, workspace: Path) -> None:
        write(workspace, {"thing.py": GOOD, "tests/own.py": "mine", "conftest.py": "mine"})
        seen.append(workspace)

    assert graded(task, work) == 1.0
    (workspace,) = seen
    assert sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*")) == [
        "conftest.py",
        "tests",
        "tests/own.py",
        "thing.py",
    ]


PYTEST = {
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef three():\n    return 3\n",
    "tests/test_p.py": """
        import pytest
        import thing

        def test_c(three):
            assert thing.c() == three

        @pytest.mark.parametrize("number", [1, 2])
        def test_d(number):
            assert thing.d(number) == number

        @pytest.mark.skip
        def test_skipped():
            pass
        """,
}
HOOK = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        return True
    """


@pytest.fixture
def pytested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task whose tests need pytest, which the Python on the path has."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    tests = {name: textwrap.dedent(text) for name, text in PYTEST.items()}
    nl2repo_folder(tmp_path / "source/thing", tests, 4)
    (tmp_path / "source/thing/test_commands.json").write_text('["pip install -e .", "pytest tests"]')
    (found,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return found


def test_pytest_runs_with_the_hidden_tests_own_settings(pytested: Task, graded: Graded) -> None:
    assert graded(pytested, leaving({"thing.py": GOOD})) == 0.75  # skipping is not passing
    assert graded(pytested, leaving({"thing.py": BAD})) == 0.0


@pytest.mark.parametrize(
    "files",
    [
        {"thing.py": BAD, "conftest.py": HOOK},
        {"thing.py": BAD, "tests/conftest.py": HOOK},
        {"thing.py": BAD, "hook.py": HOOK, "pytest.ini": "[pytest]\naddopts = -p hook\n"},
        {"thing.py": BAD, "hook.py": HOOK, "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p hook"\n'},
        {"thing.py": BAD, "hook.py": HOOK, "hook-1.dist-info/entry_points.txt": "[pytest11]\nhook = hook\n"},
        {"thing.py": BAD + "import _pytest.runner\n_pytest.runner.TestReport.outcome = 'passed'\n"},
        {"thing.py": BAD + "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"},
    ],
    ids="+".join,
)
def test_a_result_forged_in_pytest_earns_nothing(pytested: Task, graded: Graded, files: dict[str, str]) -> None:
    assert graded(without_twins(pytested), leaving(files)) == 0.0
