"""What lies in a cell's memory: an engine, a trainer, and the door to the reductions of gradients."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gyre.config import Config
from gyre.engines.port import Engine
from gyre.trainers.port import Trainer
from services.place import Place

if TYPE_CHECKING:
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
    from gyre.engines.torch_engine import TorchEngine
    from gyre.models.load import find_model, load_model
    from gyre.trainers.reduction import Reducer

    config = place.config
    trainer = load_trainer(config)
    engine = TorchEngine(load_model(find_model(config.model.path))[0], rows=config.cells.concurrency)
    return Replica(engine, trainer, Reducer(place.folder, index, place.instance, REDUCTION_SECONDS))


def load_trainer(config: Config) -> Trainer:
    """A trainer as cells have it, without an engine. Raises `ModelError`."""
    import torch

    from gyre.models.load import find_model, load_model
    from gyre.rl.objective import Settings
    from gyre.trainers.optimizer import AdamSettings
    from gyre.trainers.torch import TorchTrainer

    torch.set_num_threads(config.cells.threads)
    bounds, adam = config.objective, config.optimizer
    return TorchTrainer(
        load_model(find_model(config.model.path))[0],
        config.rollout.temperature,
        Settings(
            ratio_low=bounds.ratio_low,
            ratio_high=bounds.ratio_high,
            weight_cap=bounds.weight_cap,
            loss_cap=bounds.loss_cap,
        ),
        AdamSettings(
            learning_rate=adam.lr,
            beta1=adam.betas[0],
            beta2=adam.betas[1],
            epsilon=adam.eps,
            weight_decay=adam.weight_decay,
            clip=adam.clip,
        ),
        share_prefixes=config.packing.share_prefixes,
        activation_bytes=config.packing.activation_mb * 1_000_000,
    )
