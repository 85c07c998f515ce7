"""What lies in a cell's memory: an engine, a trainer, and the door to the reductions of gradients."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gyre.config import Config
from gyre.engines.port import Engine
from gyre.models.load import MODELLED
from gyre.trainers.port import Trainer
from services.place import Place

if TYPE_CHECKING:
    from gyre.trainers.optimizer import AdamSettings
    from gyre.trainers.reduction import Reducer

REDUCTION_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts of one cell."""

    engine: Engine
    """Released: the cell loads it with what is published."""
    trainer: Trainer
    reducer: "Reducer"


def load_replica(place: Place, index: int) -> Replica:
    """Build both from the run's model folder; takes seconds. Raises `ModelError`."""
    import torch

    from gyre.trainers.reduction import Reducer

    torch.set_num_threads(place.config.cells.threads)
    make = modelled if place.config.model.path == MODELLED else computing
    engine, trainer = make(place.config)
    return Replica(engine, trainer, Reducer(place.folder, index, place.instance, REDUCTION_SECONDS))


def computing(config: Config) -> tuple[Engine, Trainer]:
    """An engine and a trainer of the configured model, each with weights of its own. Raises `ModelError`."""
    from gyre.engines.torch_engine import TorchEngine
    from gyre.models.load import find_model, load_model

    engine = TorchEngine(load_model(find_model(config.model.path))[0], rows=config.cells.concurrency)
    return engine, _torch_trainer(config)


def load_trainer(config: Config) -> Trainer:
    """A trainer as cells have it, without an engine. Raises `ModelError`."""
    import torch

    torch.set_num_threads(config.cells.threads)
    return modelled(config)[1] if config.model.path == MODELLED else _torch_trainer(config)


def _torch_trainer(config: Config) -> Trainer:
    from gyre.models.load import find_model, load_model
    from gyre.rl.algorithms.port import Settings
    from gyre.trainers.torch import TorchTrainer

    bounds = config.objective
    return TorchTrainer(
        load_model(find_model(config.model.path))[0],
        config.rollout.temperature,
        Settings(
            bounds.name,
            ratio_low=bounds.ratio_low,
            ratio_high=bounds.ratio_high,
            weight_cap=bounds.weight_cap,
            loss_cap=bounds.loss_cap,
        ),
        _adam(config),
        share_prefixes=config.packing.share_prefixes,
        activation_bytes=config.packing.activation_mb * 1_000_000,
    )


def modelled(config: Config) -> tuple[Engine, Trainer]:
    """An engine and a trainer that wait for what [modelled] says; the engine speaks in plain words of the tokenizer."""
    from gyre.engines.modelled import ModelledEngine, Pace
    from gyre.models.load import find_model
    from gyre.proxy.chat_model import ChatModel
    from gyre.tasks.words import WORDS
    from gyre.trainers.modelled import ModelledTrainer

    times = config.modelled
    pace = Pace(
        token_seconds=times.token_seconds,
        idle_gain=times.idle_gain,
        load_seconds=times.publication_seconds,
        release_seconds=times.to_train_seconds,
        resume_seconds=times.to_rollout_seconds,
    )
    words = ChatModel.load(find_model(MODELLED)).encode(" ".join(WORDS))
    engine = ModelledEngine(words, pace, rows=config.cells.concurrency, context=config.rollout.context_tokens)
    return engine, ModelledTrainer(
        _adam(config), batch_seconds=times.training_seconds, update_seconds=times.update_seconds
    )


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
