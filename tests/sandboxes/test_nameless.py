"""Files that were deleted and are still held: found where they are open or mapped, each once."""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from gyre.sandboxes.nameless import Nameless, nameless

ME = (os.getpid(),)
LIBC = ctypes.CDLL(None)
LIBC.mmap.restype = ctypes.c_void_p


def test_a_deleted_file_counts_once_however_often_it_is_held(tmp_path: Path) -> None:
    before = nameless(ME, tmp_path, 1000)
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(1 << 20))
        file.flush()
        other = os.dup(file.fileno())
        assert nameless(ME, tmp_path, 1000) == before  # it has a name
        (tmp_path / "file").unlink()
        after = nameless(ME * 2, tmp_path, 1000)
        assert (after.disk_bytes - before.disk_bytes, after.files - before.files) == (1 << 20, 1)
    place = LIBC.mmap(None, ctypes.c_size_t(1 << 20), 1, 1, other, ctypes.c_long(0))  # Python's own keeps it open
    os.close(other)
    assert nameless(ME, tmp_path, 1000) == after
    LIBC.munmap(ctypes.c_void_p(place), ctypes.c_size_t(1 << 20))
    assert nameless(ME, tmp_path, 1000) == before


def test_memory_without_a_name_is_told_from_the_disk(tmp_path: Path) -> None:
    before = nameless(ME, tmp_path, 1000)
    held = os.memfd_create("held")
    os.write(held, bytes(1 << 20))
    after = nameless(ME, tmp_path, 1000)
    os.close(held)
    assert (after.disk_bytes, after.memory_bytes - before.memory_bytes) == (before.disk_bytes, 1 << 20)


def test_a_process_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    assert nameless((1 << 30,), tmp_path, 1000) == Nameless()
    assert nameless(ME, tmp_path / "gone", 1000).disk_bytes == 0


def test_where_no_descriptor_is_left_what_has_a_disk_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = nameless(ME, tmp_path, 1000)
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(1 << 20))
        file.flush()
        (tmp_path / "file").unlink()
        monkeypatch.setattr(os, "memfd_create", none_left)
        assert nameless(ME, tmp_path, 1000).disk_bytes - before.disk_bytes == 1 << 20


def test_it_counts_no_further_than_it_has_to(tmp_path: Path) -> None:
    held = [os.memfd_create("held") for _ in range(20)]
    assert nameless(ME, tmp_path, 5).files == 6
    for each in held:
        os.close(each)
