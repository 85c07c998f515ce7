"""Where control groups can be made: both versions, whatever this machine has."""

import os
from pathlib import Path

import pytest

from gyre.sandboxes.groups import Group, Groups, places
from gyre.sandboxes.port import Limits
from tests.sandboxes.attacks import GREEDY, Greedy
from tests.sandboxes.stand import make


def tree(root: Path, *folders: str, given: str = "") -> Path:
    """Groups as the kernel shows them."""
    for name in folders:
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("")
        if given:
            (folder / "cgroup.subtree_control").write_text(given)
    return root


def test_version_1_is_used_below_the_own_group_of_each_controller(tmp_path: Path) -> None:
    root = tree(tmp_path, "pids/a", "memory/a/b", "cpu")
    own = "4:memory:/a/b\n3:pids:/a\n2:cpu,cpuacct:/\n0::/\n"
    assert places(own, root) == {"memory": root / "memory/a/b", "pids": root / "pids/a", "cpu": root / "cpu"}


def test_version_2_is_used_where_a_group_gives_its_controllers_to_children(tmp_path: Path) -> None:
    root = tree(tmp_path, "user.slice/app.slice", given="memory pids")
    tree(tmp_path, "user.slice/app.slice/shell.scope", given="")
    own = "0::/user.slice/app.slice/shell.scope\n"
    slice_ = root / "user.slice/app.slice"
    assert places(own, root) == {"memory": slice_, "pids": slice_}


@pytest.mark.parametrize("own", ["", "0::/\n", "3:pids:/gone\n0::/\n", "4:memory:/\n"])
def test_where_none_can_be_made_there_is_none(tmp_path: Path, own: str) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/cgroup.procs").write_text("")
    assert places(own, tmp_path) == {}


def test_version_2_is_told_its_limits_and_read_for_what_was_refused(tmp_path: Path) -> None:
    files = ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
    for name in files:
        (tmp_path / name).write_text("")
    (tmp_path / "pids.events").write_text("max 3\n")
    (tmp_path / "memory.events").write_text("low 0\noom 4\noom_kill 2\n")
    group = Group(dict.fromkeys(("cpu", "memory", "pids"), tmp_path))
    group.limit(Limits(memory_bytes=1 << 20, processes=9, cpus=1.5))
    assert [(tmp_path / name).read_text() for name in files] == ["1048576", "0", "9", "150000 100000"]
    assert (group.refused, group.killed) == (3, 2)
    assert group.entries == (f"{tmp_path}/cgroup.procs",)


def test_what_another_namespace_has_in_a_group_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n")
    assert not Group({"pids": tmp_path}).kill()


def test_groups_of_an_owner_that_is_gone_are_taken_away() -> None:
    group = Groups().open(Limits())
    if group is None:
        pytest.skip("no control groups can be made here")
    for folder in set(group.folders.values()):
        parts = folder.name.split("-")
        folder.rename(folder.with_name("-".join([*parts[:2], str(os.getpid()), "1", "0"])))  # as if it had begun at 1
    Groups()
    assert [path for folder in group.folders.values() for path in folder.parent.glob(f"gyre-*-{os.getpid()}-1-0")] == []


@pytest.mark.parametrize("attack", [each for each in GREEDY if each.ending == "memory"], ids=lambda attack: attack.name)
@pytest.mark.parametrize("kind", ["process", "bubblewrap"])
async def test_without_control_groups_a_watch_counts_memory_however_it_is_held(
    tmp_path: Path, kind: str, attack: Greedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyre.sandboxes.groups.here", dict)
    stand = make(kind)
    ended = await stand.sandbox.run(stand.command(tmp_path / "box", attack.script))
    await stand.sandbox.close()
    assert (ended.ending, ended.reason) == ("memory", "ended because it used more than 128 MB of memory"), ended
