"""The clients in `.harnesses/`, each in a folder of its own; what the machine cannot have is told, with the reason."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / ".harnesses"
_LEAST = (3, 11)


class Unavailable(Exception):
    """A client cannot be installed here; the message says why."""


def install(name: str, client: Mapping[str, Any]) -> Path:
    """Install a client, if it is not there yet, and return the folder of its commands. Raises Unavailable."""
    home, pins = FOLDER / name, "\n".join(client["packages"])
    stamp = home / "installed"
    npm = client["kind"] == "npm"
    commands = home / ("node_modules/.bin" if npm else "bin")
    if not (stamp.is_file() and stamp.read_text() == pins):
        home.mkdir(parents=True, exist_ok=True)
        (_npm if npm else _pip)(home, client)
        stamp.write_text(pins)
    return commands


def _npm(home: Path, client: Mapping[str, Any]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not on PATH")
    _run(npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--no-progress", *client["packages"])


def _pip(home: Path, client: Mapping[str, Any]) -> None:
    python = _python(tuple(client.get("python", _LEAST)))
    _run(python, "-m", "venv", str(home))
    _run(str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *client["packages"])


def _python(least: tuple[int, ...]) -> str:
    """An interpreter that is new enough. Raises Unavailable."""
    for python in _pythons():
        if _version(python) >= least:
            return python
    raise Unavailable(f"needs Python {'.'.join(map(str, least))} or newer; HARNESS_PYTHON may name one")


def _pythons() -> Iterator[str]:
    yield from filter(None, (os.environ.get("HARNESS_PYTHON"), sys.executable))
    yield from filter(None, (shutil.which(f"python3.{minor}") for minor in (12, 13, 14)))
    yield from map(str, sorted(Path.home().glob(".pyenv/versions/3.1*/bin/python")))


def _version(python: str) -> tuple[int, ...]:
    program = "import sys; print(*sys.version_info[:2])"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return tuple(map(int, found.stdout.split())) if found.returncode == 0 else ()


def _run(*arguments: str) -> None:
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = " ".join((ended.stderr or ended.stdout).split())[-300:]
        raise Unavailable(f"{Path(arguments[0]).name} {arguments[1]}: exit {ended.returncode}: {said}")
