"""gyre check names a bad task, what is wrong with it and the way out, in one line, before anything starts."""

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.conftest import Gyre, refusal
from tests.tasks.layouts import harbor_folder, nl2repo_folder, swe_folder, write

Spoil = Callable[[Path], object]


def untested(folder: Path) -> None:
    shutil.rmtree(harbor_folder(folder / "bad") / "tests")


def hostile_archive(folder: Path) -> None:
    bad = swe_folder(folder / "bad")
    shutil.rmtree(bad / "repo")
    with tarfile.open(bad / "repo.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("../../out-of-it")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))


def linked_out(folder: Path) -> None:
    (nl2repo_folder(folder / "bad", {"tests/test_a.py": "x"}, 1) / "hidden/link").symlink_to("/etc/passwd")


def untold(folder: Path) -> None:
    nl2repo_folder(folder / "bad", {"tests/test_a.py": "x"}, 1).joinpath("test_case_count.txt").write_text("many")


def outward(folder: Path) -> None:
    nl2repo_folder(folder / "bad", {"tests/test_a.py": "x"}, 1).joinpath("test_files.json").write_text('["../x"]')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (untested, "tests/test.sh is missing"),
        (lambda folder: harbor_folder(folder / "bad"), "needs image a:1, which sandbox.kind = process has not; set it"),
        (
            lambda folder: harbor_folder(folder / "bad", "", "FROM a\nRUN make\n"),
            "which sandbox.kind = process has not; set it to docker, or gyre.needs_image = false in the task's",
        ),
        (hostile_archive, "entry '../../out-of-it' leads out of it; make the archive again without it"),
        (linked_out, "links to a place outside the task folder"),
        (untold, "test_case_count.txt: must hold how many tests there are"),
        (outward, "test_files.json: '../x' leads out of the package"),
        (lambda folder: swe_folder(folder / "bad", patch="nonsense"), "git apply: "),
        (lambda folder: write(folder / "bad", {"README": "?"}), "task.toml is missing"),
        (lambda folder: None, "no such folder of tasks"),
    ],
)
def test_a_bad_task_is_named_before_anything_starts(gyre: Gyre, tmp_path: Path, spoil: Spoil, message: str) -> None:
    spoil(tmp_path / "tasks")
    (tmp_path / "run.toml").write_text('[tasks]\ntrain = "tasks"\nheldout = "words:2:heldout"\n')
    line = refusal(gyre("check", "run.toml"))
    assert message in line
    assert "bad" in line or "halves" in line or "no such" in line
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "tasks") == ["run.toml"]
