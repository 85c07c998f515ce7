"""A model's parameters as something to swap, free and take again, all or nothing."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gyre.engines.port import WeightsRefused
from gyre.rl.experts import together


class Parameters:
    """The parameters of one model under all their names (tied ones have several)."""

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[int, tuple[str, ...]] = {}
        self._parameters: dict[int, nn.Parameter] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._names[id(parameter)] = (*self._names.get(id(parameter), ()), name)
            self._parameters[id(parameter)] = parameter
        self._shapes = {key: parameter.shape for key, parameter in self._parameters.items()}

    def prepare(self, weights: Path | Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Copies of the new values, checked against the model and not yet in use.

        Raises:
            WeightsRefused: unreadable, a parameter missing, a name that the model does not have, or another shape.
        """
        given = _together(_read(weights) if isinstance(weights, Path) else weights)
        known = {name for names in self._names.values() for name in names}
        if unknown := sorted(given.keys() - known):
            raise WeightsRefused(f"weights: {unknown[0]!r} ({len(unknown)} such) is no parameter of the model")
        return {key: self._value(key, given) for key in self._parameters}

    def swap(self, values: dict[int, Tensor]) -> None:
        """Use prepared values from now on: taken out of `values`, which a thread's end may hold a little longer."""
        for key, parameter in self._parameters.items():
            parameter.data = values.pop(key)

    def free(self) -> None:
        """Give the parameters' memory back; the model cannot compute until `swap`."""
        for parameter in self._parameters.values():
            parameter.data = parameter.data.new_empty(0)

    def _value(self, key: int, given: Mapping[str, Tensor]) -> Tensor:
        name = next((name for name in self._names[key] if name in given), None)
        if name is None:
            raise WeightsRefused(f"weights: parameter {self._names[key][0]!r} is missing")
        value = given[name]
        if value.shape != self._shapes[key]:
            expected, found = tuple(self._shapes[key]), tuple(value.shape)
            raise WeightsRefused(f"weights: {name!r} has shape {found}, the model needs {expected}")
        dtype = self._parameters[key].dtype
        # A copy of our own: the file may be mapped and replaced, the state dict may be a trainer's, still training.
        return value.detach().to(dtype=dtype, copy=True, memory_format=torch.contiguous_format)


def _together(given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Experts as the model computes with them: files have them apart."""
    try:
        return together(given)
    except ValueError as error:
        raise WeightsRefused(f"weights: {error}") from error


def _read(path: Path) -> Mapping[str, Tensor]:
    try:
        tensors: Mapping[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsRefused(f"weights: {path} cannot be read as safetensors: {error}") from error
    return tensors
