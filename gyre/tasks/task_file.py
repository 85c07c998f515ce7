"""`task.toml`: what a task says of itself, in Harbor's words where Harbor has one."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from gyre.errors import GyreError

Seconds = Annotated[float, Field(gt=0, le=7 * 86400, allow_inf_nan=False)]
Kind = Literal["folder", "harbor", "terminal-bench", "swe", "nl2repo"]
"""Where a task comes from: gyre's own layout, or one that it was brought from."""

SETUP_SECONDS, AGENT_SECONDS, VERIFIER_SECONDS = 60.0, 600.0, 60.0
HARBOR_VERIFIER_SECONDS = 600.0
BUILD_SECONDS = 600.0


class TaskError(GyreError):
    """A task folder cannot be used; one line naming the task, what is wrong and what to do."""


class _Section(BaseModel):
    """A table of task.toml; keys that gyre doesn't use are other tools' business and are let pass."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Metadata(_Section):
    """What the task is, for people and for selecting tasks."""

    name: str = ""
    difficulty: str = "unknown"
    tags: list[str] = []


class Environment(_Section):
    """What the workspace is made of, and how long making it may take."""

    setup_timeout_sec: Seconds = SETUP_SECONDS
    build_timeout_sec: Seconds = BUILD_SECONDS
    """Most time to build its image."""
    docker_image: str | None = None
    """Container image that the task wants to be worked on in."""
    workdir: Annotated[str, Field(pattern=r"^/[^/]")] | None = None
    """Where the image has its work, and where the workspace is to be found in the container."""
    os: str = "linux"
    env: dict[str, str] = {}
    mcp_servers: list[Any] = []
    healthcheck: dict[str, Any] | None = None


class AgentLimits(_Section):
    """Limits on the agent's own time."""

    timeout_sec: Seconds | None = None


class VerifierLimits(_Section):
    """Limits on grading."""

    timeout_sec: Seconds | None = None
    env: dict[str, str] = {}


class Solution(_Section):
    """What the reference solution needs."""

    env: dict[str, str] = {}


class Own(_Section):
    """What only gyre reads."""

    kind: Kind = "folder"
    """Which layout the folder was brought from; written by gyre."""
    needs_image: bool = True
    """Whether there is no working on it without its image; false: this machine's own programs serve as well."""
    from_image: bool = False
    """Whether the workspace begins as what the image holds in `environment.workdir`; written by gyre."""
    built: bool = False
    """Whether `gyre tasks build` makes the image; written by gyre."""
    build_args: dict[str, str] = {}
    """What its Dockerfile's ARGs are."""
    twins: bool = True
    """Of SWE and NL2Repo tasks: whether a test counts only where the same test, asking for something else, fails."""
    scoring: Literal["resolved", "share"] = "resolved"
    """Of SWE tasks: 1 when all of the named tests pass and 0 otherwise, or also a share for some of them."""


class TaskFile(_Section):
    """`task.toml` as a whole."""

    version: str = Field(default="", validation_alias=AliasChoices("schema_version", "version"))
    metadata: Metadata = Metadata()
    environment: Environment = Environment()
    agent: AgentLimits = AgentLimits()
    verifier: VerifierLimits = VerifierLimits()
    solution: Solution = Solution()
    gyre: Own = Own()
    steps: list[Any] = []


def read_task_file(file: Path) -> TaskFile:
    """A `task.toml`. Raises TaskError."""
    try:
        raw: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return TaskFile.model_validate(raw)
    except FileNotFoundError as error:
        raise TaskError(f"{file.parent}: task.toml is missing") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"{file}: {key} = {first['input']!r}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: not readable as TOML: {error}") from error
