"""A causal language model whose parameters have no content: it takes next to no memory, and can be tried."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gyre.models.load import ModelError, quiet

_TOKENS = 64
"""Rows of the embedding that have numbers when a model is tried: others are not looked up."""


def empty_model(folder: Path) -> tuple[Any, Any]:
    """The model in eval mode and its config. Parameters are on the meta device, buffers are computed as ever.

    Code that comes with a model is not run.

    Raises:
        ModelError: the folder has no config of a known architecture.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    quiet()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config.dtype = "float32"
        with _without_content():
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a damaged config makes transformers raise; its own kind is none of ValueError
        reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise ModelError(f"model folder {folder}: {reason}; give a complete causal model") from error
    return model.eval(), model.config


@contextmanager
def lent(model: Any) -> Iterator[None]:
    """In here an empty model computes: parameters of one shape share their numbers, so that it takes a layer's memory.

    The numbers say nothing; how they are computed with does not depend on them.
    """
    own = [(module, *each) for module in model.modules() for each in module.named_parameters(recurse=False)]
    embedding = model.get_input_embeddings().weight.shape
    numbers = {embedding: _numbers(embedding, _TOKENS)}
    for module, name, parameter in own:
        if parameter.shape not in numbers:
            numbers[parameter.shape] = _numbers(parameter.shape, len(parameter))
        setattr(module, name, numbers[parameter.shape])
    try:
        yield
    finally:
        for module, name, parameter in own:
            setattr(module, name, parameter)


def _numbers(shape: torch.Size, rows: int) -> nn.Parameter:
    """Such that what goes through a matrix keeps its size; of an embedding only rows that are looked up."""
    found = torch.zeros(shape)  # takes no memory where nothing is written
    found[:rows] = torch.randn(found[:rows].shape) / shape[-1] ** 0.5 if len(shape) > 1 else 1.0
    return nn.Parameter(found)


@contextmanager
def _without_content() -> Iterator[None]:
    """Parameters that modules take in here go to the meta device at once; before that, nobody has written into them."""
    take = nn.Module.register_parameter

    def take_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        take(module, name, parameter)

    nn.Module.register_parameter = take_empty  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = take  # type: ignore[method-assign]
