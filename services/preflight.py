"""What is refused before a run begins: nothing is written and nothing is started until all of this holds."""

import json
from pathlib import Path
from typing import Any

from gyre.config import Config
from gyre.errors import ConfigError, Problem
from gyre.models.load import ModelError, find_model
from gyre.proxy.adapters.registry import find_adapter
from gyre.sandboxes.make import check_sandbox
from gyre.sandboxes.port import SandboxError
from gyre.tasks.sources import examine
from services.experts import check_experts
from services.judges import check_evaluators
from services.weights import check_transport


def preflight(config: Config) -> None:
    """The model is there and large enough, and tasks and the harness's adapter can be used.

    Raises:
        ConfigError, ModelError, TaskError, AdapterUnknown, EvaluatorError: naming what to change.
    """
    check_context(config)
    check_experts(config, model_config(find_model(config.model.path)))
    check_sandboxes(config)
    find_adapter(config.harness.adapter)
    check_template(config)
    check_transport(config)
    check_evaluators(config)
    for source in (config.tasks.train, config.tasks.heldout):
        examine(source)


def check_sandboxes(config: Config) -> None:
    """Those that are asked for work here. Raises `ConfigError`."""
    grading = config.evaluator.sandbox or config.sandbox.kind
    for kind, key in {grading: "evaluator.sandbox", config.sandbox.kind: "sandbox.kind"}.items():
        try:
            check_sandbox(config.sandbox.model_copy(update={"kind": kind}))
        except SandboxError as error:
            rule = f"{error}; or use process, where agents are trusted"
            raise ConfigError("", (Problem(key, kind, rule),)) from error


def check_context(config: Config) -> None:
    """One execution must fit the model. Raises `ConfigError`, `ModelError`."""
    most = model_config(find_model(config.model.path)).get("max_position_embeddings")
    if isinstance(most, int) and config.rollout.context_tokens > most:
        rule = f"exceeds the context of model {config.model.path}, {most} tokens; lower it"
        raise ConfigError("", (Problem("rollout.context_tokens", str(config.rollout.context_tokens), rule),))


def check_template(config: Config) -> None:
    """The chat template serves, and the parsers fit it. Raises `ConfigError`, `ModelError`."""
    from gyre.proxy.chat_model import ChatModel
    from gyre.proxy.errors import TemplateUnusable
    from gyre.proxy.template import Template

    rollout = config.rollout
    try:
        Template(ChatModel.load(find_model(config.model.path)), rollout.tool_parser, rollout.thinking_parser)
    except TemplateUnusable as error:
        raise ConfigError("", (Problem("model.path", config.model.path, str(error)),)) from error


def model_config(folder: Path) -> dict[str, Any]:
    """The model's own `config.json`. Raises `ModelError`."""
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"model folder {folder}: config.json is not readable as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"model folder {folder}: config.json must hold a JSON object")
    return found
