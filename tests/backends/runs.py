"""Whole runs of two cells over megatron-core's ranks: their configuration, and the commands that make them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.backends.conftest import ENVIRONMENT, SHIMS

ROOT = Path(__file__).parents[2]
Sections = Mapping[str, Mapping[str, Any]]
SMALL: Sections = {
    "run": {"steps": 3},
    "schedule": {"groups": 2, "executions": 4, "mu": 2, "phi": 0.5},
    "cells": {"count": 2, "concurrency": 8, "lost_after_seconds": 60},
    "tasks": {"train": "words:64:train", "heldout": "words:16:heldout"},
    "evaluation": {"episodes": 0},
    "rollout": {"max_tokens": 48, "context_tokens": 512},
    "packing": {"row_tokens": 1024, "micro_step_tokens": 1024, "share_prefixes": False},
    "optimizer": {"lr": 1e-4},
    "trainer": {"kind": "megatron", "backend": "gloo"},
}
"""What all of them have, where they say nothing else."""


def write_run(folder: Path, name: str, **sections: Mapping[str, Any]) -> Path:
    """`name`.toml: the small run, but for these fields of these sections."""
    merged = {each: {**SMALL.get(each, {}), **sections.get(each, {})} for each in (*SMALL, *(sections.keys() - SMALL))}
    merged["run"]["name"] = name
    path = folder / f"{name}.toml"
    path.write_text("\n".join(line for each in merged.items() for line in _section(*each)) + "\n")
    return path


def agent(turns: int, tokens: int) -> dict[str, list[str]]:
    """A harness section: the reference agent, which ends after so many turns of so many tokens."""
    words = ("{python}", "-I", "-S", "{reference}", "--max-turns", str(turns), "--max-tokens", str(tokens))
    return {"command": list(words)}


def environment() -> dict[str, str]:
    """In which commands are run: they find gyre and the shims."""
    paths = os.pathsep.join([str(ROOT), str(SHIMS)])
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": ENVIRONMENT["HF_HUB_OFFLINE"]}


def gyre(folder: Path, *words: str) -> Any:
    """What a command says at its end, as JSON."""
    done = subprocess.run(
        (sys.executable, "-m", "services.cli", *words, "--json"),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def _section(name: str, fields: Mapping[str, Any]) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in fields.items())]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)
