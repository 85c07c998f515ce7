"""Draw one token a row from logits, vectorised, and say how likely it was.

The draw is by inversion: one uniform number a token, found in the cumulative distribution. The number comes from a
counter, not from a generator with state: row r's token at absolute position p uses u = mix(key_r, p). So the tokens of
a request depend on its seed and its logits, not on which other requests share its batch, and a request that is
continued elsewhere from its partial output goes on as it would have here.
"""

from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STEPS = 2.0**48


def draw_key(seed: int | None, request_id: str) -> int:
    """The 64-bit key of a request's draws: from its seed, or from its id when it has none."""
    named = f"id {request_id}" if seed is None else f"seed {seed}"
    return int.from_bytes(blake2b(named.encode(), digest_size=8).digest(), "little")


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number strictly inside (0, 1) for each (key, position), with 48 random bits.

    The stream of a key is SplitMix64 (Steele, Lea, Flood 2014) started at the key and read at `position`.

    Args:
        keys: (N,) from `draw_key`.
        positions: (N,) absolute position of the token to draw, from 0.
    """
    mixed = keys + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN  # wraps around, as intended
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    draws: NDArray[np.float64] = ((mixed >> np.uint64(16)).astype(np.float64) + 0.5) / _STEPS
    return draws


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token a row.

    The distribution is softmax(logits / temperature), cut to the `top_k` likeliest tokens, then to the smallest set of
    likeliest ones whose mass among those reaches `top_p`, and renormalised. Ties rank the lower id first.

    Args:
        logits: (N, V) float32.
        temperature: (N,) float32; below `GREEDY_BELOW` the likeliest token is taken.
        top_p: (N,) float32 in (0, 1]; 1 cuts nothing.
        top_k: (N,) int64; 0 cuts nothing.
        uniform: (N,) float64 in (0, 1).

    Returns:
        Tokens, (N,) int64, and their log-probabilities, (N,) float32 in nats, under that distribution (greedy: 0). NaN
        where the logits are not finite: the caller must not use such a token.
    """
    greedy = temperature < GREEDY_BELOW
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]
    cut = torch.nonzero((top_p < 1.0) | (top_k > 0)).flatten()
    if cut.numel():
        scaled[cut] = _truncated(scaled[cut], top_p[cut], top_k[cut])
    logprobs = torch.log_softmax(scaled, dim=-1)  # (N, V)
    mass = torch.cumsum(logprobs.exp(), dim=-1, dtype=torch.float64)
    # `right` finds the first token whose cumulative mass exceeds the draw: one of zero probability is never hit.
    tokens = torch.searchsorted(mass, uniform[:, None] * mass[:, -1:], right=True).clamp_(max=logits.shape[1] - 1)
    chosen = logprobs.gather(1, tokens)
    if bool(greedy.any()):
        tokens = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
        chosen = torch.where(greedy[:, None], logprobs.gather(1, tokens) * 0.0, chosen)
    return tokens[:, 0], chosen[:, 0]


def _truncated(scaled: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """`scaled` (M, V) with -inf for every token outside top-k, then top-p."""
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1])
    limit = torch.where(top_k > 0, top_k, scaled.shape[1])
    ordered = ordered.masked_fill(rank >= limit[:, None], -torch.inf)
    probabilities = ordered.softmax(dim=-1, dtype=torch.float64)
    before = probabilities.cumsum(dim=-1) - probabilities
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (rank > 0), -torch.inf)
    return torch.empty_like(scaled).scatter_(1, order, ordered)
