"""Rows of packed segments as tensors, and the log-probabilities of their targets (design §7, Packing).

Attention is causal inside a segment and absent between segments; positions restart at 0. With shared prefixes a row is
the prefix tree of its segments instead: each node once, at its depth, seeing its ancestors only, so that its hidden
state is that of the same token in every segment through it. Logits exist only where the next token is a target, a few
hundred at a time, and are computed again in the backward pass: a vocabulary of 49k would otherwise cost 200 kB a
target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gyre.rl.prefixes import prefixes, seats, separate
from gyre.trainers.attention import Runs, runs
from gyre.trainers.port import MicroStepRefused
from gyre.trainers.replayed import UNKNOWN, RowExperts
from schemas.training import Row, Segment

_LOGIT_CHUNK = 256  # targets whose logits exist at once: 50 MB at a vocabulary of 49k


@dataclass(frozen=True, slots=True)
class RowTensors:
    """One row of T tokens with U targets, D of them distinct: predicted from another place, or another token."""

    ids: Tensor
    """(1, T) int64."""
    positions: Tensor
    """(1, T) int64, from 0 in each segment."""
    runs: Runs
    """What attends to what."""
    sources: Tensor
    """(D,) int64: where in the row the token before each distinct target lies."""
    tokens: Tensor
    """(D,) int64: the distinct targets themselves."""
    distinct: Tensor
    """(U,) int64: which of the D each target is."""
    log_roll: Tensor
    """(U,) float64, nats."""
    owner: Tensor
    """(U,) int64: index of each target's execution in the micro-step."""
    weight: Tensor
    """(U,) float64: 1 / (B N L_i)."""
    experts: Tensor | None = None
    """(T, layers, top k) int64: the experts that the engine took at each place, likeliest first; -1 where unknown."""
    holders: Tensor | None = None
    """(T,) int64: index of the execution that each place belongs to; -1 for none. With `experts`."""
    unseen: Tensor | None = None
    """(t, T) bool: of one rank's part of a row, what its t tokens do not attend to among all T; None: see `runs`."""


def row_tensors(
    row: Row, owners: Mapping[str, int], vocabulary: int, *, share_prefixes: bool, experts: RowExperts = ()
) -> RowTensors:
    """Lay a row's segments end to end, or as their prefix tree.

    Args:
        row: at least one segment.
        owners: index of each execution in the micro-step.
        vocabulary: ids must be below it.
        share_prefixes: lay out what segments have in common once.
        experts: of each segment, as `gyre.trainers.replayed` reads them; () leaves them out.
    Raises:
        MicroStepRefused: lengths differ, an id is outside the vocabulary, there is no target, or one has no context or
            no finite log-probability; names execution, leaf, value and rule.
    """
    parts = [_segment(each, vocabulary) for each in row.segments]
    tree = prefixes([each[0] for each in parts]) if share_prefixes else separate(len(parts))
    places, tokens = seats(tree, [len(each[0]) for each in parts])
    ids, positions = np.zeros((2, tokens), np.int64)
    for path, (segment, _, _) in zip(places, parts, strict=True):
        ids[path], positions[path] = segment, np.arange(len(path))
    marked = [np.flatnonzero(target) for _, target, _ in parts]
    counts = [len(each) for each in marked]
    sources = np.concatenate([path[here - 1] for path, here in zip(places, marked, strict=True)])
    wanted = np.concatenate([part[0][here] for part, here in zip(parts, marked, strict=True)])
    pairs, distinct = np.unique(sources * vocabulary + wanted, return_inverse=True)
    log_roll = np.concatenate([part[2][here] for part, here in zip(parts, marked, strict=True)])
    taken, holders = _experts(row, experts, places, tokens, owners)
    return RowTensors(
        ids=torch.from_numpy(ids)[None],
        positions=torch.from_numpy(positions)[None],
        runs=runs(tree, places),
        sources=torch.from_numpy(pairs // vocabulary),
        tokens=torch.from_numpy(pairs % vocabulary),
        distinct=torch.from_numpy(distinct),
        log_roll=torch.from_numpy(log_roll.astype(np.float64)),
        owner=torch.from_numpy(np.repeat([owners[each.execution] for each in row.segments], counts)),
        weight=torch.from_numpy(np.repeat([float(each.weight) for each in row.segments], counts)),
        experts=taken,
        holders=holders,
    )


def _experts(
    row: Row, experts: RowExperts, places: Sequence[NDArray[np.int64]], tokens: int, owners: Mapping[str, int]
) -> tuple[Tensor | None, Tensor | None]:
    """`RowTensors.experts` and `RowTensors.holders`; a place that several segments share is the last one's."""
    shape = next((each.shape[1:] for each in experts if each is not None), None)
    if shape is None:
        return None, None
    taken = np.full((tokens, *shape), UNKNOWN, np.int64)
    holders = np.full(tokens, UNKNOWN, np.int64)
    for segment, path, each in zip(row.segments, places, experts, strict=True):
        holders[path] = owners[segment.execution]
        if each is not None:
            taken[path] = each
    return torch.from_numpy(taken), torch.from_numpy(holders)


def target_log_probs(model: Any, row: RowTensors, temperature: float) -> Tensor:
    """(U,) float64: log pi_theta of each target given its context, `log_softmax(logits / temperature)`, nats.

    Args:
        model: a causal language model of transformers, `attach`ed; its body and its head are called apart.
        row: what to run.
        temperature: the rollout's, so that the ratio compares the same two distributions; above 0.
    """
    body, head = model.base_model, model.get_output_embeddings()
    hidden = body(input_ids=row.ids, position_ids=row.positions, use_cache=False, gyre_runs=row.runs)
    context = hidden.last_hidden_state[0, row.sources]  # (D, H)
    parts = zip(torch.split(context, _LOGIT_CHUNK), torch.split(row.tokens, _LOGIT_CHUNK), strict=True)
    logs = [checkpoint(_log_probs, head, states, tokens, temperature, use_reentrant=False) for states, tokens in parts]
    return torch.cat(logs)[row.distinct].double()


def _log_probs(head: nn.Module, states: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    raw: Tensor = head(states)
    logits = raw.to(torch.promote_types(raw.dtype, torch.float32)) / temperature  # (u, V)
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(1)


def _segment(segment: Segment, vocabulary: int) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float32]]:
    if len(segment.ids) % 4 or len(segment.logprobs) % 4:
        raise _refused(segment, f"ids {len(segment.ids)} bytes, logprobs {len(segment.logprobs)}: need multiples of 4")
    ids = np.frombuffer(segment.ids, "<i4")
    target = np.frombuffer(segment.target, np.uint8).astype(bool)
    logprobs = np.frombuffer(segment.logprobs, "<f4")
    if not 0 < len(ids) == len(target) == len(logprobs):
        found = f"ids {len(ids)}, target {len(target)}, logprobs {len(logprobs)} entries"
        raise _refused(segment, f"{found}: need equally many, at least one")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise _refused(
            segment, f"ids from {ids.min()} to {ids.max()}: need 0 to {vocabulary - 1}, the model's vocabulary"
        )
    if not target.any():
        raise _refused(segment, "target is 0 throughout: a segment without targets trains nothing, leave it out")
    if target[0]:
        raise _refused(segment, "target[0] = 1: the first token has no context to be predicted from")
    if not np.isfinite(logprobs[target]).all():
        raise _refused(segment, "logprobs: a target's behaviour log-probability is not finite")
    return ids, target, logprobs


def _refused(segment: Segment, problem: str) -> MicroStepRefused:
    return MicroStepRefused(f"execution {segment.execution}, leaf {segment.leaf}: {problem}")
