"""Tiny random Llamas, and what a full forward pass says about a generation."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

from gyre.engines.port import Generation
from tests import tiny

VOCABULARY = 97
SHAPE = {"vocab_size": VOCABULARY, "intermediate_size": 64, "initializer_range": 0.2}


def make_llama(seed: int, context: int = 4096) -> Any:
    """Large enough weights that distributions are far from uniform."""
    return tiny.llama(seed, **SHAPE, max_position_embeddings=context)


def make_qwen(seed: int, context: int = 4096) -> Any:
    """The same of another family, which has no pass of its own in the engine."""
    return tiny.qwen(seed, **SHAPE, max_position_embeddings=context, head_dim=8)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def llama() -> Callable[..., Any]:
    return make_llama


@pytest.fixture(params=[make_llama, make_qwen], ids=["llama", "qwen3"])
def family(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return cast("Callable[..., Any]", request.param)


@pytest.fixture
def full_logprobs() -> Callable[..., torch.Tensor]:
    """(model, prompt, generation, temperature) -> (T,) log-probabilities of the output by one pass without a cache."""

    def of(model: Any, prompt: tuple[int, ...], generation: Generation, temperature: float = 1.0) -> torch.Tensor:
        ids = torch.tensor([[*prompt, *generation.output_ids]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits / temperature, dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0]

    return of
