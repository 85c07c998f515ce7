"""A batch with every hard case in it, a tiny model, and the loss and gradient that NumPy float64 finds for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gyre.rl.algorithms.port import Settings
from gyre.rl.objective import decide
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.torch import TorchTrainer
from schemas.base import pack_floats, pack_ints
from schemas.training import MaskDecided, MicroStepEnqueued, RatioMeasured, Row, Segment
from tests import tiny

VOCABULARY = tiny.SHAPE["vocab_size"]
TEMPERATURE = 0.7
ORIGINALS = 8  # B N
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One execution: its advantage, and the log ratio that each target of each of its trajectories is given."""

    name: str
    advantage: float
    log_ratios: tuple[float, ...]


CASES = (
    Case("plain", 0.9, (0.001, -0.002)),
    Case("worse", -1.1, (0.004, 0.0)),
    Case("capped", -0.5, (2.0,)),  # rho = 7.4: the weight stops at 5; the mask does not stop A < 0 with s > 1
    Case("toohigh", 1.3, (0.2, -0.05, 0.001)),  # s > 1.005 as a whole; its second and third parts are below it
    Case("toolow", -0.8, (-0.2, 0.05, -0.001)),  # s < 0.995 as a whole; its second and third parts are above it
    Case("inside", 0.7, (0.05, -0.05, 0.0)),  # trains as a whole; its first part alone is beyond 1.005
    Case("costly", 22.0, (-0.3,)),  # A log pi beyond the loss cap for all but likely targets
)
SPLIT = ("toohigh", "toolow", "inside")


def tiny_model(**shape: Any) -> Any:
    """The Llama of the batch."""
    return tiny.llama(7, **shape)


def tiny_qwen() -> Any:
    """A Qwen3 likewise."""
    return tiny.qwen(9)


def tiny_mixture() -> Any:
    """A Qwen3-MoE likewise."""
    return tiny.mixture(8)


def trainer(
    adam: AdamSettings | None = None,
    model: Any = None,
    temperature: float = TEMPERATURE,
    settings: Settings | None = None,
    **more: Any,
) -> TorchTrainer:
    """All activations kept and prefixes shared, unless said otherwise."""
    how = {"share_prefixes": True, "activation_bytes": 1 << 30} | more
    return TorchTrainer(model or tiny_model(), temperature, settings or Settings(), adam or AdamSettings(), **how)


def log_probs(model: Any, ids: Sequence[int], temperature: float = TEMPERATURE) -> torch.Tensor:
    """(T,) of a sequence by itself: all logits, no packing; entry 0 is 0, since nothing predicts the first token."""
    logits = model(torch.tensor([ids])).logits[0, :-1] / temperature
    found = logits.log_softmax(1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return torch.cat([torch.zeros(1, dtype=found.dtype), found])


@torch.no_grad()
def segments(case: Case, make: Callable[[], Any] = tiny_model) -> list[Segment]:
    """One segment a trajectory: 9 to 16 tokens, of which a random half after the first are targets."""
    random = np.random.default_rng(sum(case.name.encode()))
    model, made = make().double(), []
    for index, log_ratio in enumerate(case.log_ratios):
        length = int(random.integers(9, 17))
        ids = random.integers(0, VOCABULARY, length).tolist()
        target = np.concatenate([[False], random.random(length - 1) < 0.5])
        target[-1] = True
        logprobs = np.where(target, log_probs(model, ids).numpy() - log_ratio, 0.0)
        made.append((f"leaf{index}", ids, target, logprobs))
    total = sum(int(target.sum()) for _, _, target, _ in made)
    return [
        Segment(
            execution=case.name,
            leaf=leaf,
            ids=pack_ints(ids),
            target=target.astype(np.uint8).tobytes(),
            logprobs=pack_floats(logprobs),
            advantage=case.advantage,
            weight=1.0 / (ORIGINALS * total),
        )
        for leaf, ids, target, logprobs in made
    ]


def micro_step(rows: Sequence[Sequence[Segment]], number: int = 0, **more: Any) -> MicroStepEnqueued:
    tokens = sum(len(each.target) for row in rows for each in row)
    packed = tuple(Row(segments=tuple(each)) for each in rows)
    fields = {"step": 1, "micro_step": number, "kind": "train", "rows": packed, "tokens": tokens} | more
    return MicroStepEnqueued(**fields)


def masks(measured: Sequence[RatioMeasured], settings: Settings | None = None) -> tuple[MaskDecided, ...]:
    """What the packer decides once all measurements are in."""
    advantages = {each.name: each.advantage for each in CASES}
    made = []
    for name in dict.fromkeys(each.execution for each in measured):
        mine = [each for each in measured if each.execution == name]
        total, count = sum(each.log_ratio_sum for each in mine), sum(each.count for each in mine)
        decision = decide(total, count, advantages[name], settings or Settings())
        made.append(MaskDecided(execution=name, ratio=decision.ratio, mask=decision.mask))
    return tuple(made)


@dataclass(frozen=True)
class Expected:
    """What the formulas give for whole executions, in float64."""

    loss: float
    gradient: Array
    ratio: dict[str, float]
    mask: dict[str, int]
    sums: dict[str, float]


def expected(cases: Sequence[Case] = CASES, make: Callable[[], Any] = tiny_model) -> Expected:
    """What the formulas give for these cases, each trajectory computed by itself."""
    return formulas({case.name: segments(case, make) for case in cases}, make)


def formulas(executions: Mapping[str, Sequence[Segment]], make: Callable[[], Any] = tiny_model) -> Expected:
    """Design §7 in NumPy float64: s_i over T_i, m_i, rho_bar, l_u, 1/L_i, 1/(B N); torch only differentiates log pi."""
    model = make().double()
    loss, ratio, mask, sums = 0.0, {}, {}, {}
    for name, parts in executions.items():
        chosen = [np.frombuffer(each.target, np.uint8).astype(bool) for each in parts]
        log_pis = [log_probs(model, np.frombuffer(each.ids, "<i4").tolist()) for each in parts]
        log_pi_graph = torch.cat([each[torch.from_numpy(here)] for each, here in zip(log_pis, chosen, strict=True)])
        log_pi = log_pi_graph.detach().numpy()
        rolled = [np.frombuffer(each.logprobs, "<f4").astype(np.float64) for each in parts]
        log_roll = np.concatenate([each[here] for each, here in zip(rolled, chosen, strict=True)])
        count, advantage = len(log_pi), parts[0].advantage
        s = float(np.exp(np.mean(log_pi - log_roll)))
        m = 0 if (advantage > 0 and s > 1.005) or (advantage < 0 and s < 0.995) else 1
        rho_bar = np.minimum(np.exp(log_pi - log_roll), 5.0)
        raw = -m * rho_bar * advantage * log_pi
        losses = np.minimum(raw, 100.0)
        loss += float(losses.sum()) / count / ORIGINALS
        slope = np.where(raw < 100.0, -m * rho_bar * advantage, 0.0) / count / ORIGINALS
        log_pi_graph.backward(torch.from_numpy(slope))
        ratio[name], mask[name], sums[name] = s, m, float(losses.sum())
    gradient = np.concatenate([each.grad.numpy().ravel() for each in model.parameters()])
    return Expected(loss, gradient, ratio, mask, sums)


def distance(found: torch.Tensor, wanted: Array | torch.Tensor) -> float:
    """|found - wanted| / |wanted|, 2-norms."""
    reference = torch.as_tensor(wanted).double()
    return float((found.double() - reference).norm() / reference.norm())
