"""Repositories of strangers: one commit's files taken out, and a new repository of one commit without a past.

Every call runs without the user's, the system's and the repository's own settings, hooks, templates and filters.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gyre.tasks.task_file import TaskError
from gyre.tasks.unpack import MOST_BYTES, MOST_ENTRIES

_SECONDS = 120.0
_WHEN = "2000-01-01T00:00:00+0000"
_WHO = "task"
_MESSAGE = "The repository as it is handed over"
_SETTINGS = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.autocrlf", "false"),
    ("core.symlinks", "true"),
    ("core.logAllRefUpdates", "false"),
    ("protocol.allow", "never"),
    ("protocol.file.allow", "always"),
    ("transfer.fsckObjects", "true"),
    ("fetch.unpackLimit", "1"),  # what a pack would unfold to is looked at before anything is written
    ("gc.auto", "0"),
)


def git(*words: str, folder: Path, index: Path | None = None) -> str:
    """What a git command says. Raises TaskError, with git's own last line; also where there is no git."""
    found = shutil.which("git")
    if found is None:
        raise TaskError("git is not installed: tasks on repositories need it")
    chosen = {
        f"GIT_CONFIG_{part}_{place}": value for place, pair in enumerate(_SETTINGS) for part, value in _pair(pair)
    }
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "LC_ALL": "C",
        "GIT_CEILING_DIRECTORIES": str(folder.absolute().parent),  # never a repository that the folder lies in
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
        **chosen,
        **{f"GIT_{who}_{what}": _WHO for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        **{f"GIT_{who}_DATE": _WHEN for who in ("AUTHOR", "COMMITTER")},
        **({"GIT_INDEX_FILE": str(index)} if index else {}),
    }
    try:
        done = subprocess.run(
            (found, *words), cwd=folder, env=environment, capture_output=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise TaskError(f"git {words[0]}: took more than {_SECONDS:g} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise TaskError(f"git {words[0]}: {said[-1][:200]}")
    return done.stdout.decode(errors="replace")


def check_out(source: Path, commit: str, target: Path) -> None:
    """The files of one commit of a bundle or a bare repository, in the new folder `target`, without any history.

    Raises TaskError: git cannot read it, the commit is not in it, or its files are more than a task may have.
    """
    with _scratch() as bare:
        git("init", "--quiet", "--bare", "--template=", ".", folder=bare)
        git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", str(source), "+refs/*:refs/all/*", folder=bare)
        if not commit or commit.startswith("-"):
            raise TaskError(f"base_commit = {commit!r}: not a commit of {source.name}")
        tree = git("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}", folder=bare).strip()
        _refuse_bombs(git("ls-tree", "-r", "-l", tree, folder=bare), source)
        target.mkdir(parents=True)
        index = bare / "index.of.commit"
        git("read-tree", tree, folder=bare, index=index)
        git("--work-tree", str(target), "--git-dir", ".", "checkout-index", "-a", folder=bare, index=index)


def one_commit(folder: Path) -> None:
    """Make a folder a repository whose only commit holds what is in it: no other object, reference or log is there.

    A `.git` that was there, with hooks and settings, is gone. Raises TaskError.
    """
    forget(folder)
    git("init", "--quiet", "--template=", "--initial-branch=main", ".", folder=folder)
    git("add", "--all", "--force", ".", folder=folder)
    git("commit", "--quiet", "--allow-empty", "--no-verify", "--message", _MESSAGE, folder=folder)
    for name in ("COMMIT_EDITMSG", "logs", "hooks", "branches", "description"):
        left = folder / ".git" / name
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def forget(folder: Path) -> None:
    """Remove every `.git` below a folder, with the hooks and settings in it, before git is let near."""
    for found in list(folder.rglob(".git")):
        shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink(missing_ok=True)


def apply(patch: Path, folder: Path) -> None:
    """Apply a patch to a folder that is no repository; git refuses names outside of it. Raises TaskError."""
    git("apply", "--whitespace=nowarn", str(patch.absolute()), folder=folder)


def touched(patch: Path, folder: Path) -> tuple[str, ...]:
    """Names of the files that a patch changes, makes or removes. Raises TaskError."""
    said = git("apply", "--numstat", "-z", str(patch.absolute()), folder=folder)
    return tuple(entry.split("\t", 2)[2] for entry in said.split("\0") if entry)


def _pair(pair: tuple[str, str]) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("KEY", pair[0]), ("VALUE", pair[1])


def _refuse_bombs(listed: str, source: Path) -> None:
    sizes = [line.split("\t")[0].split() for line in listed.splitlines()]
    total = sum(int(size[3]) for size in sizes if size[3].isdigit())
    if len(sizes) > MOST_ENTRIES or total > MOST_BYTES:
        raise TaskError(f"{source.name}: its commit has {len(sizes)} files of {total} bytes, more than a task may have")


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gyre-git-") as name:
        yield Path(name)
