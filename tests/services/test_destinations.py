"""Where commands write: found out before the work."""

import os
from pathlib import Path

import pytest

from services.destinations import NoDestination, check_file


def test_pipes_devices_and_new_files_are_destinations(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path / "new"):
        check_file(path)


@pytest.mark.parametrize("name", ["folder", "file/below", "new/file"])
def test_what_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(NoDestination, match=r"is a folder|no such folder"):
        check_file(tmp_path / name)


def refused_to_nobody(path: Path, *, anew: bool) -> bool:
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            check_file(path, anew=anew)
        except NoDestination:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user than the folder's")
def test_a_file_in_a_folder_of_others_is_written_but_not_replaced(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "theirs").touch()
    (tmp_path / "theirs").chmod(0o666)
    assert not refused_to_nobody(tmp_path / "theirs", anew=False)
    assert refused_to_nobody(tmp_path / "theirs", anew=True)
    assert refused_to_nobody(tmp_path / "ours", anew=False)
