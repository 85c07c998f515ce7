"""Attention of a row laid out as a prefix tree: each run of tokens attends to its own path only (tree attention).

A run is what one segment adds to the tree. Its queries meet the keys of its ancestors and its own, gathered; nothing is
computed for keys that a mask would hide, so a row costs what its segments would cost apart, less what they share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre.rl.prefixes import Prefixes

_NAME = "gyre_tree"  # under which transformers finds `_attend`
_PROBE = 4  # tokens of trunk and branches that an attached model is tried with
_CLOSE = 1e-3  # relative; float32 gives 1e-6


@dataclass(frozen=True, slots=True)
class Run:
    """The n tokens of a row from `start` to `stop` - 1, which lie at the end of a path of p tokens."""

    start: int
    stop: int
    path: Tensor | None
    """(p,) int64: places of its ancestors and itself, ascending; None if it has no ancestors, p = n."""
    mask: Tensor | None
    """(1, 1, n, p) float32, 0 where a query sees a key and -inf elsewhere; None if p = n: plainly causal."""


Runs = tuple[Run, ...]
"""All of a row, in order."""


def runs(tree: Prefixes, places: Sequence[NDArray[np.int64]]) -> Runs:
    """The runs of a row whose sequences lie at `places` (see `gyre.rl.prefixes.seats`)."""
    ordered = ((places[index], common) for index, common in zip(tree.order, tree.common, strict=True))
    return tuple(_run(path, common) for path, common in ordered if common < len(path))


def attach(model: Any) -> None:
    """Have a model attend by runs where its body is called with `gyre_runs`, and plainly causally elsewhere.

    Raises:
        ValueError: the architecture does not hand attention over, so that segments would see each other.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attend)
    model.set_attn_implementation(_NAME)
    if not _apart(model):
        raise ValueError(f"{model.config.model_type}: its attention cannot be kept inside the segments of a row")


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, gyre_runs: Runs = (), **more: Any
) -> tuple[Tensor, None]:
    """What transformers calls: query (1, heads, T, d), key and value (1, kv heads, T, d) -> (1, T, heads, d)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as attend

    if not gyre_runs:
        return attend(module, query, key, value, mask, **more)
    parts = []
    for run in gyre_runs:
        own = slice(run.start, run.stop)
        if run.path is None:
            keys, values = key[:, :, own], value[:, :, own]
        else:
            keys, values = key.index_select(2, run.path), value.index_select(2, run.path)
        hidden = None if run.mask is None else run.mask.to(query.dtype)
        parts.append(attend(module, query[:, :, own], keys, values, hidden, **more)[0])
    return torch.cat(parts, 1), None


def _run(path: NDArray[np.int64], common: int) -> Run:
    start, stop = int(path[common]), int(path[-1]) + 1
    if not common:
        return Run(start, stop, None, None)
    mask = torch.full((stop - start, len(path)), float("-inf")).triu_(common + 1)
    return Run(start, stop, torch.from_numpy(path), mask[None, None])


@torch.no_grad()
def _apart(model: Any) -> bool:
    """Whether a branch that lies behind another one has the hidden states that it has right behind its trunk."""
    trunk, branch = torch.arange(_PROBE), torch.arange(_PROBE, 2 * _PROBE)
    other = branch.flip(0)
    places = [np.arange(2 * _PROBE), np.concatenate([np.arange(_PROBE), np.arange(2 * _PROBE, 3 * _PROBE)])]
    row = {
        "input_ids": torch.cat([trunk, other, branch])[None],
        "position_ids": torch.cat([trunk, branch, branch])[None],
        "gyre_runs": runs(Prefixes((0, 1), (0, _PROBE)), places),
    }
    alone = model.base_model(input_ids=torch.cat([trunk, branch])[None], use_cache=False).last_hidden_state[0, _PROBE:]
    found = model.base_model(**row, use_cache=False).last_hidden_state[0, 2 * _PROBE :]
    return bool((found - alone).norm() <= _CLOSE * alone.norm())
