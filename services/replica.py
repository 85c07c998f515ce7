"""What lies in a cell's memory: an engine, a trainer, and the door to the reductions of gradients."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bus.blobs import Blobs
from bus.ports import any_port
from gyre.config import Config
from gyre.engines.port import Engine
from gyre.models.load import MODELLED
from gyre.trainers.port import Trainer
from services.address import reached
from services.experts import SERVER_ARGUMENT, reader, replays
from services.place import Place
from services.preflight import model_config

if TYPE_CHECKING:
    from gyre.rl.algorithms.port import Settings
    from gyre.trainers.optimizer import AdamSettings
    from gyre.trainers.reduction import Reducer

REDUCTION_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts of one cell."""

    engine: Engine
    """Released: the cell loads it with what is published."""
    trainer: Trainer | None
    """None at a standalone engine, which never trains."""
    reducer: "Reducer"


def load_replica(place: Place, index: int) -> Replica:
    """Build its parts from the run's model folder; takes seconds. Raises `ModelError`."""
    import torch

    from gyre.trainers.reduction import Reducer

    config = place.config
    torch.set_num_threads(config.cells.threads)
    engine = modelled_engine(config) if config.model.path == MODELLED else _engine(place, index)
    trainer = _trainer(config, Blobs(place.folder / "blobs")) if index < config.cells.count else None
    return Replica(engine, trainer, Reducer(place.folder, index, place.instance, REDUCTION_SECONDS, reached()))


def _torch_engine(config: Config) -> Engine:
    from gyre.engines.torch_engine import TorchEngine
    from gyre.models.load import find_model, load_model

    return TorchEngine(load_model(find_model(config.model.path))[0], rows=config.cells.concurrency)


def _engine(place: Place, index: int) -> Engine:
    return _sglang_engine(place, index) if place.config.engine.kind == "sglang" else _torch_engine(place.config)


def _sglang_engine(place: Place, index: int) -> Engine:
    """An engine over a cell's server, which starts when it is first given weights. Raises `ModelError`."""
    from gyre.engines.sglang import cache
    from gyre.engines.sglang.engine import SglangEngine
    from gyre.engines.sglang.server import ManagedServer, RunningServer, Server
    from gyre.models.load import find_model

    chosen, model = place.config.engine, find_model(place.config.model.path)
    experts = replays(place.config, model_config(model))
    server: Server
    if chosen.url:
        server = RunningServer(chosen.url.replace("{cell}", str(index)))
    else:
        shared = chosen.shared_cache
        server = ManagedServer(
            model,
            any_port("127.0.0.1"),
            place.folder / "logs" / f"sglang-{index}.log",
            (
                *(cache.arguments() if shared else ()),
                *((SERVER_ARGUMENT,) if experts else ()),
                *_of(index, chosen.arguments),
            ),
            chosen.python or sys.executable,
            (cache.environment(place.folder / "kv") if shared else {}) | chosen.environment,
        )
    return SglangEngine(server, model, instance=place.instance, shared_cache=chosen.shared_cache, experts=experts)


def _of(cell: int, words: tuple[str, ...]) -> tuple[str, ...]:
    """What is said of each cell, of this one."""
    return tuple(each.replace("{cell}", str(cell)) for each in words)


def load_trainer(config: Config, blobs: Blobs | None = None) -> Trainer:
    """A trainer as cells have it, without an engine; `blobs` are the run's, for routing replay. Raises `ModelError`."""
    import torch

    torch.set_num_threads(config.cells.threads)
    return _trainer(config, blobs)


def objective_settings(config: Config) -> "Settings":
    """The objective with a run's bounds."""
    from gyre.rl.algorithms.port import Settings

    chosen = config.objective
    return Settings(chosen.name, chosen.ratio_low, chosen.ratio_high, chosen.weight_cap, chosen.loss_cap)


def _torch_trainer(config: Config) -> Trainer:
    from gyre.models.load import find_model, load_model
    from gyre.trainers.torch import TorchTrainer

    return TorchTrainer(
        load_model(find_model(config.model.path))[0],
        config.rollout.temperature,
        objective_settings(config),
        _adam(config),
        share_prefixes=config.packing.share_prefixes,
        activation_bytes=config.packing.activation_mb * 1_000_000,
    )


def _trainer(config: Config, blobs: Blobs | None) -> Trainer:
    if config.model.path == MODELLED:
        return modelled_trainer(config)
    if config.trainer.kind == "megatron":
        return _megatron_trainer(config, blobs)
    return _fsdp_trainer(config) if config.trainer.ranks > 1 else _torch_trainer(config)


def _fsdp_trainer(config: Config) -> Trainer:
    from gyre.models.load import find_model
    from gyre.trainers.fsdp.trainer import FsdpTrainer, Ranks

    chosen = config.trainer
    return FsdpTrainer(
        find_model(config.model.path),
        config.rollout.temperature,
        objective_settings(config),
        _adam(config),
        Ranks(chosen.ranks, chosen.backend, config.cells.threads),
        share_prefixes=config.packing.share_prefixes,
        activation_bytes=config.packing.activation_mb * 1_000_000,
    )


def _megatron_trainer(config: Config, blobs: Blobs | None) -> Trainer:
    from gyre.models.load import find_model
    from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks

    chosen, threads = config.trainer, config.cells.threads
    ranks = Ranks(
        chosen.tensor,
        chosen.pipeline,
        chosen.backend,
        threads,
        data=chosen.data,
        expert=chosen.expert,
        context=chosen.context,
        sequence=chosen.sequence,
        replay=chosen.routing_replay,
        checkpoint=chosen.checkpoint,
        grouped=chosen.grouped_experts,
        activation_bytes=config.packing.activation_mb * 1_000_000,
    )
    read = None if blobs is None else reader(blobs)
    model, temperature, settings = find_model(config.model.path), config.rollout.temperature, objective_settings(config)
    return MegatronTrainer(model, temperature, settings, _adam(config), ranks, read)


def modelled_engine(config: Config) -> Engine:
    """An engine that waits for what [modelled] says, and speaks in plain words of the tokenizer."""
    from gyre.engines.modelled import ModelledEngine, Pace
    from gyre.models.load import find_model
    from gyre.proxy.chat_model import ChatModel
    from gyre.tasks.words import WORDS

    times = config.modelled
    pace = Pace(
        token_seconds=times.token_seconds,
        idle_gain=times.idle_gain,
        load_seconds=times.publication_seconds,
        release_seconds=times.to_train_seconds,
        resume_seconds=times.to_rollout_seconds,
    )
    words = ChatModel.load(find_model(MODELLED)).encode(" ".join(WORDS))
    return ModelledEngine(words, pace, rows=config.cells.concurrency, context=config.rollout.context_tokens)


def modelled_trainer(config: Config) -> Trainer:
    """A trainer that waits for what [modelled] says."""
    from gyre.trainers.modelled import ModelledTrainer

    times = config.modelled
    return ModelledTrainer(_adam(config), batch_seconds=times.training_seconds, update_seconds=times.update_seconds)


def _adam(config: Config) -> "AdamSettings":
    from gyre.trainers.optimizer import AdamSettings

    chosen = config.optimizer
    return AdamSettings(
        learning_rate=chosen.lr,
        beta1=chosen.betas[0],
        beta2=chosen.betas[1],
        epsilon=chosen.eps,
        weight_decay=chosen.weight_decay,
        clip=chosen.clip,
    )
