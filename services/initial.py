"""Write policy version 0 into a run folder: a process of its own, so that who starts runs need not import torch.

Nor does it where the file is known beforehand. Run as `python -m services.initial FOLDER MODEL`; prints the reference
as JSON.
"""

import shutil
import sys
from functools import partial
from pathlib import Path

from gyre.errors import GyreError
from gyre.models.load import MODELLED, NANO, find_model, load_model
from gyre.trainers.buckets import write_first
from gyre.trainers.checkpoint import place_file, save_float32, save_tensors
from schemas.refs import WeightsRef


def write_initial(folder: Path, model: str) -> WeightsRef:
    """Save the model's weights as a trainer would; raises `ModelError`."""
    if model == MODELLED:
        return place_file(write_first, folder, "weights")
    found = find_model(model)
    if found == NANO:  # a trainer wrote it
        return place_file(partial(shutil.copyfile, NANO / "model.safetensors"), folder, "weights")
    from gyre.trainers.mapped import mapped
    from gyre.trainers.torch import file_state

    tensors = mapped(found)  # so that a model may be larger than the memory of whoever starts runs
    if tensors is not None:
        return save_float32(tensors, folder, "weights")
    return save_tensors(file_state(load_model(found)[0])[0], folder, "weights")


if __name__ == "__main__":
    try:
        sys.stdout.write(write_initial(Path(sys.argv[1]), sys.argv[2]).model_dump_json() + "\n")
    except GyreError as problem:
        sys.exit(str(problem))
