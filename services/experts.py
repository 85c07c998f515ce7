"""Mixtures of experts in a run: what is refused beforehand, and what cells do for routing replay."""

from typing import Any

from bus.blobs import BlobError, Blobs
from gyre.config import Config
from gyre.errors import ConfigError, Problem
from gyre.models.load import MODELLED, find_model
from gyre.trainers.replayed import Read
from schemas.refs import BlobRef

SERVER_ARGUMENT = "--enable-return-routed-experts"


def replays(config: Config, model: dict[str, Any]) -> bool:
    """Whether engines tell which experts they took, for trainers that take them again.

    Args:
        config: of a run that `check_experts` lets pass.
        model: its `config.json`.
    """
    return bool(experts_of(model)) and config.trainer.routing_replay and config.engine.kind == "sglang"


def experts_of(model: dict[str, Any]) -> int:
    """Experts of each layer, as a `config.json` of any version of transformers says it; 0 for none."""
    return int(model.get("num_experts") or model.get("num_local_experts") or 0)


def check_experts(config: Config, model: dict[str, Any]) -> None:
    """The ranks can hold the model, and routing is replayed where it can be. Raises `ConfigError`."""
    if config.model.path == MODELLED:
        return
    if config.trainer.kind == "megatron":
        _check_ranks(config, model)
    if not experts_of(model) or not config.trainer.routing_replay:
        return
    for field, kind, only in (
        ("trainer.kind", config.trainer.kind, "megatron"),
        ("engine.kind", config.engine.kind, "sglang"),
    ):
        if kind != only:
            rule = f'with experts, routing replay needs "{only}"; set trainer.routing_replay = false to go without'
            raise ConfigError("", (Problem(field, repr(kind), rule),))


def reader(blobs: Blobs) -> Read:
    """The bodies behind the claim checks of records' experts."""
    from gyre.trainers.port import MicroStepRefused

    def read(reference: BlobRef) -> bytes:
        try:
            return blobs.get(reference)
        except BlobError as error:
            raise MicroStepRefused(f"experts: {error}") from error

    return read


def _check_ranks(config: Config, model: dict[str, Any]) -> None:
    from gyre.trainers.megatron.grid import Grid
    from gyre.trainers.megatron.layout import Layout, LayoutRefused

    chosen = config.trainer
    try:
        grid = Grid(chosen.tensor, chosen.pipeline, chosen.data, chosen.expert, chosen.context)
        Layout.of(model, grid, grouped=chosen.grouped_experts)
    except LayoutRefused as error:
        raise ConfigError("", (Problem("trainer", str(find_model(config.model.path)), str(error)),)) from error
