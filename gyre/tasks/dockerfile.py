"""A Dockerfile that only copies files can be done without an engine: which image it begins with, and what it copies.

Anything that runs in the image (RUN, a second stage, ADD of an archive or a URL, ...) needs the image to be built.
"""

import json
import os
import posixpath
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from gyre.tasks.context import DOCKERFILE, IGNORE, Context
from gyre.tasks.task_file import TaskError

_HARMLESS = {"LABEL", "EXPOSE", "CMD", "MAINTAINER", "STOPSIGNAL", "SHELL"}


@dataclass(frozen=True, slots=True)
class Plain:
    """What a Dockerfile comes to."""

    base: str
    """Image that it begins with."""
    workdir: str
    """Where the work is; "" where nothing says so."""
    copies: tuple[tuple[str, str], ...]
    """(name in the build context, absolute path in the image)."""
    needs: str = ""
    """The first line that cannot be done without an engine; "": there is none."""
    variables: bool = False
    """Whether it sets variables, which only an image keeps."""


def read_dockerfile(file: Path) -> Plain:
    """What a Dockerfile says. Raises TaskError where it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: not readable as UTF-8 text: {error}") from error
    base, workdir, needs, name, variables = "", "", "", "", False
    stages: dict[str, str] = {}  # name -> its workdir so far
    copies: list[tuple[str, str]] = []
    for line in _lines(text):
        word, _, rest = line.partition(" ")
        match word.upper():
            case "FROM":
                words = [each for each in rest.split() if not each.startswith("--")]
                needs = needs or (line[:80] if base else "")
                base, workdir = base or next(iter(words), ""), stages.get(next(iter(words), ""), "")
                name = words[-1] if len(words) > 1 else ""
            case "WORKDIR":
                workdir = posixpath.normpath(posixpath.join(workdir or "/", rest.strip().strip("\"'")))
                stages[name] = workdir
            case "COPY" | "ADD" if copied := _copied(rest, workdir):
                copies += copied
            case "ENV":
                variables = True
            case other if other not in _HARMLESS:
                needs = needs or line[:80]
    return Plain(base, workdir, tuple(copies), needs, variables)


def hindrance(plain: Plain, context: Context) -> str:
    """Why a Dockerfile cannot be done without an engine, "" if it can."""
    if plain.needs:
        return plain.needs
    for source, target in plain.copies:
        if not target.startswith(plain.workdir.rstrip("/") + "/") and target.rstrip("/") != plain.workdir:
            return f"copies {source} to {target}, outside its workdir {plain.workdir or '/'}"
        found = os.path.relpath((context.folder / source).resolve(), context.folder.resolve())
        if not {source, found} <= {".", *context.names}:
            return f"copies {source}, which is not in {context.folder.name}/"
    return ""


def copy_files(plain: Plain, context: Context, workspace: Path) -> None:
    """Lay out below `workspace` what a plain Dockerfile copies below its workdir."""
    workspace.mkdir(parents=True, exist_ok=True)
    for source, target in plain.copies:
        inside = workspace / posixpath.relpath(target, plain.workdir)
        if (context.folder / source).is_dir():
            top = "" if source == "." else f"{source}/"
            for name in context.names:
                if name.startswith(top) and name not in (DOCKERFILE, IGNORE):
                    _copy(context.folder / name, inside / name.removeprefix(top))
        else:
            found = (context.folder / source).resolve()  # a link that is copied by name is what it leads to
            _copy(found, inside / Path(source).name if target.endswith("/") or inside.is_dir() else inside)


def _copy(path: Path, target: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)


def _copied(rest: str, workdir: str) -> list[tuple[str, str]]:
    """The pairs of a COPY; none for one that is more than a copy of files by name."""
    try:
        words = json.loads(rest) if rest.lstrip().startswith("[") else shlex.split(rest)
    except ValueError:
        return []
    if len(words) < 2 or any(each.startswith("--") or re.search(r"[*?$]|://|\.t?gz$|\.tar", each) for each in words):  # noqa: PLR2004
        return []
    *sources, last = words
    target = posixpath.join(workdir or "/", last)
    target = posixpath.normpath(target) + ("/" if last.endswith("/") or len(sources) > 1 else "")
    return [(posixpath.normpath(each.lstrip("/") or "."), target) for each in sources]


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    return [line.strip() for line in joined.splitlines() if line.strip()]
