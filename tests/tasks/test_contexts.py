"""Build contexts: what an engine is given, what it never sees, and a name that says what an image is made of."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.tasks import context as contexts
from gyre.tasks.context import Context, read_context
from gyre.tasks.ignore import Ignore
from gyre.tasks.task_file import TaskError
from tests.tasks.layouts import write


def made(folder: Path, **files: str) -> Path:
    write(folder, {"Dockerfile": "FROM a\n", "in.txt": "x", "src/a.py": "", **files})
    return folder


def members(context: Context) -> dict[str, tarfile.TarInfo]:
    body = io.BytesIO()
    context.write(body)
    body.seek(0)
    with tarfile.open(fileobj=body) as archive:
        return {member.name: member for member in archive}


def test_equal_files_make_the_same_name_whoever_has_them(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b")
    (second / "in.txt").chmod(0o600)
    assert read_context(first).image("Some_Task") == read_context(second).image("Some_Task")
    assert read_context(first).image("Some_Task").startswith("localhost/gyre-task/some-task:")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "in.txt").write_text("y"),
        lambda folder: (folder / "in.txt").chmod(0o755),
        lambda folder: (folder / "in.txt").rename(folder / "out.txt"),
        lambda folder: (folder / "empty").mkdir(),
        lambda folder: (folder / "link").symlink_to("in.txt"),
        lambda folder: (folder / "Dockerfile").write_text("FROM b\n"),
    ],
)
def test_whatever_changes_an_image_changes_its_name(tmp_path: Path, change: object) -> None:
    folder = made(tmp_path / "a")
    before = read_context(folder).digest()
    change(folder)  # type: ignore[operator]
    assert read_context(folder).digest() != before


def test_arguments_of_a_build_are_part_of_its_name(tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    assert read_context(folder, arguments={"A": "1"}).digest() != read_context(folder).digest()


def test_an_archive_holds_what_the_names_say_and_no_owner(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", **{"bin/run.sh": "#!/bin/sh\n"})
    (folder / "bin/run.sh").chmod(0o700)
    (folder / "src/link").symlink_to("../in.txt")
    found = members(read_context(folder))
    assert sorted(found) == ["Dockerfile", "bin", "bin/run.sh", "in.txt", "src", "src/a.py", "src/link"]
    assert (found["bin/run.sh"].mode, found["in.txt"].mode) == (0o755, 0o644)
    assert (found["src/link"].issym(), found["src/link"].linkname) == (True, "../in.txt")
    assert {(each.uid, each.gid, each.uname) for each in found.values()} == {(0, 0, "")}


def test_what_is_ignored_or_hidden_stays_out(tmp_path: Path) -> None:
    ignore = "# remarks\n*.log\n!keep.log\n**/cache\ndocs/**\nDockerfile\n"
    names = ("a.log", "keep.log", "src/cache/x", "docs/a/b", "tests/t.py", "solution.sh")
    folder = made(tmp_path / "a", **dict.fromkeys(names, "x"), **{".dockerignore": ignore})
    found = read_context(folder, hidden=("tests", "solution.sh")).names
    assert set(found) == {".dockerignore", "Dockerfile", "docs", "in.txt", "keep.log", "src", "src/a.py"}


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "src/../../secret"])
def test_a_link_out_of_the_context_is_refused(tmp_path: Path, target: str) -> None:
    folder = made(tmp_path / "a")
    (folder / "link").symlink_to(target)
    with pytest.raises(TaskError, match=r"link: links out of the build context, to .*; copy the file"):
        read_context(folder)


def test_a_context_that_is_too_large_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "a", big="x" * 4096)
    monkeypatch.setattr(contexts, "MOST_BYTES", 1024)
    with pytest.raises(TaskError, match=r"more than a build context may, 1024 bytes .*; name what it needs not in"):
        read_context(folder)
    (folder / ".dockerignore").write_text("big\n")
    assert "big" not in read_context(folder).names


@pytest.mark.parametrize(
    ("pattern", "hidden", "shown"),
    [
        ("*.md", ["README.md"], ["docs/README.md", "README.mdx"]),
        ("**/*.md", ["README.md", "docs/a/README.md"], ["README.mdx"]),
        ("docs", ["docs", "docs/a/b"], ["docs2", "a/docs"]),
        ("/docs/", ["docs/a"], ["a/docs"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[ab]c", ["ac", "bc"], ["cc"]),
        ("[^ab]c", ["cc"], ["ac"]),
        (r"\*", ["*"], ["a"]),
        ("a.b", ["a.b"], ["axb"]),
        ("./x/../y", ["y"], ["x"]),
        ("a/**/z", ["a/z", "a/b/c/z"], ["b/z"]),
        ("# a", [], ["# a", "a"]),
        ("**\n!a\na/b", ["x", "a/b", "a/b/c"], ["a", "a/c"]),
    ],
)
def test_patterns_mean_what_they_mean_to_docker(pattern: str, hidden: list[str], shown: list[str]) -> None:
    ignore = Ignore(pattern)
    assert [name for name in hidden if not ignore.hides(name)] == []
    assert [name for name in shown if ignore.hides(name)] == []


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(TaskError, match=r"x/.dockerignore: '\[a' is no pattern"):
        Ignore("ok\n[a\n", "x/.dockerignore")


@given(st.lists(st.text(st.sampled_from("ab*?/!.")), max_size=4), st.text(st.sampled_from("ab/."), min_size=1))
def test_what_a_folder_hides_is_hidden_in_it(patterns: list[str], name: str) -> None:
    ignore = Ignore("\n".join(each for each in patterns if not each.strip().startswith("!")))
    if ignore.hides(name):
        assert ignore.hides(f"{name}/inner")
