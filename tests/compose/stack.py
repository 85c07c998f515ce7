"""The stack of compose.yaml as the tests see it: commands, containers, what the run's own log says."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Failed(Exception):
    """Something is not as it should be."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of the stack."""

    name: str
    service: str
    pid: int
    """Of its main process, on this machine; 0: it does not run."""
    healthy: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """A project of its own beside whatever else there is."""

    environment: dict[str, str]

    def shell(self, script: str, seconds: float = 600.0) -> str:
        """Run a script in the project's folder, as a reader of the page would; its output. Raises `Failed`."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode != 0:
            raise Failed(f"{script.strip()}: exit {done.returncode}: {(done.stderr or done.stdout)[-3000:]}")
        return done.stdout

    def gyre(self, *words: str) -> Any:
        """What a command of the service `gyre` prints as JSON."""
        found = self.shell(f"docker compose run --rm -T gyre {' '.join(words)} --json")
        return json.loads(found.strip().splitlines()[-1])

    def containers(self) -> list[Container]:
        """All that are kept up."""
        ids = self.shell("docker compose ps --all --quiet").split()
        told = json.loads(subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True).stdout)
        found = [_container(each) for each in told]
        return sorted((each for each in found if each.service != "keys"), key=lambda each: each.name)

    def inspected(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(service, what the engine says of its container)."""
        ids = self.shell("docker compose ps --all --quiet").split()
        for each in json.loads(subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True).stdout):
            yield each["Config"]["Labels"]["com.docker.compose.service"], each

    def kill(self, container: Container, patience_seconds: float) -> float:
        """SIGKILL its main process, from outside; seconds until another one is healthy."""
        began = time.monotonic()
        os.kill(container.pid, signal.SIGKILL)

        def back() -> bool:
            now = next(each for each in self.containers() if each.name == container.name)
            return now.healthy and now.pid not in (0, container.pid)

        self.until(f"{container.name} is back", back, patience_seconds)
        return time.monotonic() - began

    def all_healthy(self) -> bool:
        """Whether every container is."""
        return all(each.healthy for each in self.containers())

    def progress(self) -> dict[str, Any]:
        """`gyre status` of the run."""
        found: dict[str, Any] = self.gyre("status", "demo")
        return found

    def finished(self) -> bool:
        """Whether the launcher has archived the run."""
        return "archive " in self.shell("docker compose logs --no-log-prefix launcher 2>&1")

    @staticmethod
    def until(what: str, holds: Callable[[], bool], seconds: float) -> None:
        """Look until it holds. Raises `Failed`."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise Failed(f"not within {seconds:g} s: {what}")
            time.sleep(0.5)


def _container(told: dict[str, Any]) -> Container:
    state = told["State"]
    health = state.get("Health", {}).get("Status", "none")
    labels = told["Config"]["Labels"]
    return Container(told["Name"].lstrip("/"), labels["com.docker.compose.service"], state["Pid"], health == "healthy")


def host(words: Sequence[str]) -> str:
    """A command of this machine."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
