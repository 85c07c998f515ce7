"""Safetensors files read in parts: of each tensor the rows that a rank holds, and nothing else of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyre.trainers.fsdp.sharing import Chunks
from gyre.trainers.port import WeightsRefused


def shapes_in(file: Path) -> dict[str, Tensor]:
    """Its tensors by name, without content. Raises `WeightsRefused`: it is missing, damaged or a folder."""
    with _opened(file) as opened:
        return {name: torch.empty(opened.get_slice(name).get_shape(), device="meta") for name in list(opened.keys())}


@contextmanager
def parts_of(file: Path, chunks: Chunks, rank: int) -> Iterator[Callable[[str], Tensor]]:
    """What a rank holds of a tensor, by its name, read from disk as it is asked for; a single number it has whole.

    Raises:
        WeightsRefused: the file is missing on this machine, or damaged.
    """
    with _opened(file) as opened:

        def part(name: str) -> Tensor:
            found = opened.get_slice(name)
            shape = found.get_shape()
            rows = chunks.rows(shape[0], rank) if shape else None
            mine: Tensor = opened.get_tensor(name) if rows is None else found[rows.start : rows.stop]
            return mine

        yield part


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        raise WeightsRefused(f"{file}: not a readable safetensors file ({error})") from error
