"""Write policy version 0 into a run folder: a process of its own, so that who starts runs need not import torch.

Run as `python -m services.initial FOLDER MODEL`; prints the reference as JSON.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gyre.errors import GyreError
from gyre.models.load import MODELLED, find_model, load_model
from gyre.trainers.checkpoint import save_tensors
from schemas.refs import WeightsRef

if TYPE_CHECKING:
    from torch import Tensor


def write_initial(folder: Path, model: str) -> WeightsRef:
    """Save the model's weights as a trainer would; raises `ModelError`."""
    return save_tensors(_modelled() if model == MODELLED else _loaded(model), folder, "weights")


def _modelled() -> "dict[str, Tensor]":
    from gyre.trainers.modelled import initial_tensors

    return initial_tensors()


def _loaded(model: str) -> "dict[str, Tensor]":
    from gyre.trainers.torch import file_state

    return file_state(load_model(find_model(model))[0])[0]


if __name__ == "__main__":
    try:
        sys.stdout.write(write_initial(Path(sys.argv[1]), sys.argv[2]).model_dump_json() + "\n")
    except GyreError as problem:
        sys.exit(str(problem))
