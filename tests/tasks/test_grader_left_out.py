"""Work that would rather be left out than lose: what it does to its grader counts against it, and never for it."""

import json
import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator
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
    """
RIGHT = "def a(): return 1\n"
WRONG = "def a(): return 0\n"
NESTED = """
    import os
    def nest(depth, name="d" * 100):
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
    """
SAY = """
    import sys
    def said(*words):
        frame = sys._getframe()
        while frame is not None:
            for value in list(frame.f_locals.values()):
                if hasattr(value, "say"):
                    value.say(*words)
                    return
            frame = frame.f_back
    """
LIMITS = "import os, resource\nresource.prlimit"
ATTACKS = {
    "nests folders in its copy": f"{NESTED}nest(1500)\n",
    "nests folders in the tests' place": f"{NESTED}os.chdir('tests')\nnest(1500)\n",
    "says a name that is a number": f"{SAY}said(5, 'passed')\n",
    "says a name that is a list": f"{SAY}said(['tests/test_one.py'], 'passed')\n",
    "says what is no JSON": f"{SAY}said('x', 'passed {{')\n",
    "says a line without a name": f"{SAY}said('x', '\\n')\n",
    "puts a file in the tests' place": "import os\nos.rename('tests', 'gone')\nopen('tests', 'w').close()\n",
    "puts a link in the tests' place": "import os\nos.rename('tests', 'gone')\nos.symlink('tests', 'tests')\n",
    "closes the tests' place": "import os\nos.chmod('tests', 0)\n",
    "removes its copy": "import os, shutil\nshutil.rmtree(os.getcwd())\n",
    "puts a link in its copy's place": """
        import os
        here = os.getcwd()
        os.rename(here, here + "x")
        os.symlink(here, here)
        """,
    "removes the workspace": "import os, shutil\nshutil.rmtree(WORKSPACE, ignore_errors=True)\n",
    "makes the workspace huge": "import os\nwith open(WORKSPACE + '/huge', 'w') as file: file.truncate(1 << 42)\n",
    "takes its grader's files": f"{LIMITS}(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))\n",
    "lets its grader write nothing": f"{LIMITS}(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))\n",
    "puts a pipe where pytest is configured": """
        import os
        for name in ("pytest.ini", "../pytest.ini"):
            if os.path.exists(name): os.unlink(name)
            os.mkfifo(name)
        """,
}
PLACES = {
    "a folder": "os.mkdir(REWARD)\nopen(REWARD + '/1.0', 'w').close()\n",
    "a pipe": "os.mkfifo(REWARD)\n",
    "a link": "open(REWARD + '1', 'w').write('1.0')\nos.symlink(REWARD + '1', REWARD)\n",
    "a reward": "open(REWARD, 'w').write('1.0')\nos.chmod(REWARD, 0o400)\n",
    "a closed folder": "os.chmod(os.path.dirname(REWARD), 0)\n",
    "a closed folder on the way": "os.chmod(os.path.dirname(os.path.dirname(os.path.dirname(REWARD))), 0)\n",
    "a file for its folder": "folder = os.path.dirname(REWARD)\nos.rmdir(folder)\nopen(folder, 'w').close()\n",
    "a link for its folder": """
        folder = os.path.dirname(REWARD)
        os.rename(folder, folder + "x")
        os.symlink(folder, folder)
        """,
}


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    tests = {f"tests/test_{name}.py": textwrap.dedent(TESTS) for name in ("one", "two")}
    nl2repo_folder(tmp_path / "source/thing", tests, 2)
    (found,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    yield found
    subprocess.run(["rm", "-rf", str(tmp_path / "workspace")], check=True)  # nested deeper than pytest bears


def attacking(text: str, answer: str = WRONG) -> Work:
    """Once in each copy of the work, which it knows by a file that it leaves there."""

    def work(_: Task, workspace: Path) -> None:
        reward = workspace.parent / "judge/reward/reward.txt"
        places = f"import os\nWORKSPACE, REWARD = {str(workspace)!r}, {str(reward)!r}\n"
        attack = f"try:\n{textwrap.indent(textwrap.dedent(text), '    ')}except OSError: pass\n"
        write(workspace, {"thing.py": places + attack + answer})

    return work


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_work_that_hinders_its_grader_loses(task: Task, graded: Graded, attack: str) -> None:
    assert graded(task, attacking(ATTACKS[attack])) == 0.0


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_the_work_puts_where_the_reward_belongs_gives_way(task: Task, graded: Graded, place: str) -> None:
    assert graded(task, attacking(PLACES[place])) == 0.0


def nested(depth: int, name: str) -> Work:
    def work(_: Task, workspace: Path) -> None:
        write(workspace, {"thing.py": RIGHT})
        here = os.open(workspace, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir(name, dir_fd=here)
            here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
            os.close(above)
        os.close(here)

    return work


def test_folders_that_are_nested_deeply_are_no_hindrance(task: Task, graded: Graded) -> None:
    assert graded(task, nested(700, "d")) == 1.0


def test_folders_that_are_nested_too_deeply_to_be_named_are_no_hindrance(task: Task, graded: Graded) -> None:
    assert graded(task, nested(60, "d" * 100)) == 1.0
    assert graded(task, nested(1500, "tests")) == 1.0


def test_a_link_on_the_way_to_what_is_removed_is_no_way(task: Task, graded: Graded, tmp_path: Path) -> None:
    write(tmp_path / "outside", {"test_one.py": "kept"})
    expected = task.tests / "expected.json"
    expected.write_text(json.dumps({**json.loads(expected.read_text()), "remove": ["tests/test_one.py"]}))

    def work(_: Task, workspace: Path) -> None:
        write(workspace, {"thing.py": RIGHT})
        (workspace / "tests").symlink_to(tmp_path / "outside")

    assert graded(task, work) == 1.0
    assert (tmp_path / "outside/test_one.py").read_text() == "kept"
