"""A Dockerfile that only copies files can be done without an engine: which image it begins with, and what it copies.

Anything that runs in the image (RUN, a second stage, ADD of an archive or a URL, ...) needs the image itself.
"""

import json
import posixpath
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from gyre.tasks.task_file import TaskError

_HARMLESS = {"LABEL", "EXPOSE", "CMD", "MAINTAINER", "STOPSIGNAL", "SHELL", "ENV"}


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


def read_dockerfile(file: Path) -> Plain:
    """What a Dockerfile says. Raises TaskError where it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: not readable as UTF-8 text: {error}") from error
    base, workdir, needs = "", "", ""
    copies: list[tuple[str, str]] = []
    for line in _lines(text):
        word, _, rest = line.partition(" ")
        match word.upper():
            case "FROM" if not base:
                base = next((each for each in rest.split() if not each.startswith("--")), "")
            case "WORKDIR":
                workdir = posixpath.normpath(posixpath.join(workdir or "/", rest.strip().strip("\"'")))
            case "COPY" | "ADD" if copied := _copied(rest, workdir):
                copies += copied
            case other if other not in _HARMLESS:
                needs = needs or line[:80]
    return Plain(base, workdir, tuple(copies), needs)


def copy_files(plain: Plain, context: Path, workspace: Path) -> str:
    """Lay out below `workspace` what a plain Dockerfile copies below its workdir; what hinders it, "" if nothing."""
    workspace.mkdir(parents=True, exist_ok=True)
    for source, target in plain.copies:
        if not target.startswith(plain.workdir.rstrip("/") + "/") and target.rstrip("/") != plain.workdir:
            return f"copies {source} to {target}, outside its workdir {plain.workdir or '/'}"
        found = (context / source).resolve()
        if not found.exists() or not found.is_relative_to(context.resolve()):
            return f"copies {source}, which is not in environment/"
        inside = workspace / posixpath.relpath(target, plain.workdir)
        if found.is_dir():
            shutil.copytree(
                found,
                inside,
                symlinks=True,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("Dockerfile", ".dockerignore"),
            )
        else:
            inside = inside / found.name if target.endswith("/") or inside.is_dir() else inside
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, inside)
    return ""


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
    return [(each.lstrip("/") or ".", target) for each in sources]


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    return [line.strip() for line in joined.splitlines() if line.strip()]
