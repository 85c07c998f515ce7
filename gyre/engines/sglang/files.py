"""Weights where SGLang can load them: a folder with one safetensors file, checked against the model's own first.

The server checks late or not at all, and is left with half of the new weights then.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gyre.engines.port import WeightsRefused
from gyre.rl.experts import apart

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


def shapes_in(file: Path) -> Shapes:
    """Name -> shape of each tensor in a safetensors file, from its header. Raises WeightsRefused."""
    try:
        with safe_open(file, "np") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 - no dict
    except (OSError, SafetensorError) as error:
        raise WeightsRefused(f"weights: {file} cannot be read: {error}; give a safetensors file") from error


def shapes_of(model: Path) -> Shapes:
    """Those of a model folder: all of its safetensors files together. Raises WeightsRefused."""
    found = {name: shape for file in sorted(model.glob("*.safetensors")) for name, shape in shapes_in(file).items()}
    if not found:
        raise WeightsRefused(f"model {model}: holds no safetensors file; convert it first")
    return found


@contextmanager
def loadable(weights: "Path | Mapping[str, Tensor]", model: Shapes) -> Iterator[Path]:
    """A folder for `/update_weights_from_disk`, for as long as it is needed.

    Args:
        weights: a safetensors file, or a state dict.
        model: what the model has. Names that repeat a tied tensor may be missing there and here.
    Raises:
        WeightsRefused: unreadable, or names or shapes that do not fit.
    """
    with TemporaryDirectory(prefix="gyre-weights-") as folder:
        file = Path(folder) / "model.safetensors"
        if isinstance(weights, Path):
            check_shapes(shapes_in(weights), model)
            file.symlink_to(weights.resolve())
        else:
            weights = apart(weights)
            check_shapes({name: tuple(each.shape) for name, each in weights.items()}, model)
            _save(weights, file)
        yield Path(folder)


def check_shapes(given: Shapes, model: Shapes) -> None:
    """Raise WeightsRefused unless names and shapes are the model's; those that repeat a tied one may be missing."""
    tied = {"lm_head.weight"}
    if missing := sorted(model.keys() - given.keys() - tied):
        raise WeightsRefused(f"weights: parameter {missing[0]!r} is missing ({len(missing)} such)")
    if unknown := sorted(given.keys() - model.keys() - tied):
        raise WeightsRefused(f"weights: {unknown[0]!r} ({len(unknown)} such) is no parameter of the model")
    for name in sorted(given.keys() & model.keys()):
        if given[name] != model[name]:
            raise WeightsRefused(f"weights: {name!r} has shape {given[name]}, the model needs {model[name]}")


def _save(weights: Mapping[str, Any], file: Path) -> None:
    from safetensors.torch import save_file

    seen: dict[int, str] = {}
    kept = {name: each for name, each in weights.items() if seen.setdefault(each.data_ptr(), name) == name}
    save_file({name: each.detach().contiguous() for name, each in kept.items()}, file, metadata={"format": "pt"})
