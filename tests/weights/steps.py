"""Real optimizer updates of a model, each saved as a core saves it: float32, and bfloat16 as a server holds it."""

from collections.abc import Iterator
from math import log
from pathlib import Path

import numpy as np
import torch

from gyre.models.load import find_model, load_model
from gyre.rl.algorithms.port import Settings
from gyre.trainers.checkpoint import load_tensors, save_tensors
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.torch import TorchTrainer, file_state
from schemas.base import pack_floats, pack_ints
from schemas.refs import WeightsRef
from schemas.training import MicroStepEnqueued, Row, Segment

ROWS, TOKENS = 4, 192


def updates(model: str, folder: Path, *, steps: int, lr: float) -> Iterator[dict[str, WeightsRef]]:
    """By kind of number, the weights before the first update and after each one; files lie in the folder."""
    trainer = TorchTrainer(
        load_model(find_model(model))[0],
        1.0,
        Settings(),
        AdamSettings(learning_rate=lr),
        share_prefixes=True,
        activation_bytes=1 << 30,
    )
    vocabulary = trainer._vocabulary
    chance = np.random.default_rng(0)
    yield _kinds(trainer, folder)
    for step in range(1, steps + 1):
        trainer.zero()
        trainer.micro_step(_batch(step, vocabulary, chance))
        trainer.apply(trainer.gradient)
        yield _kinds(trainer, folder)


def _kinds(trainer: TorchTrainer, folder: Path) -> dict[str, WeightsRef]:
    whole = save_tensors(file_state(trainer._model)[0], folder, "weights")
    halves = {name: each.bfloat16() for name, each in load_tensors(folder / whole.address).items()}
    return {"fp32": whole, "bf16": save_tensors(halves, folder, "weights")}


def _batch(step: int, vocabulary: int, chance: np.random.Generator) -> MicroStepEnqueued:
    """Random histories with as random advantages: every parameter gets a gradient, another one at each step."""
    rows = []
    for number in range(ROWS):
        target = np.concatenate([[False], chance.random(TOKENS - 1) < 0.5])
        segment = Segment(
            execution=f"x{number}",
            leaf="leaf",
            ids=pack_ints(chance.integers(0, vocabulary, TOKENS).tolist()),
            target=target.astype(np.uint8).tobytes(),
            logprobs=pack_floats(np.where(target, -20 * log(vocabulary), 0.0)),  # nothing is masked where A < 0
            advantage=-float(chance.random()) - 0.1,
            weight=1.0 / (ROWS * int(target.sum())),
        )
        rows.append(Row(segments=(segment,)))
    return MicroStepEnqueued(step=step, micro_step=0, kind="train", rows=tuple(rows), tokens=ROWS * TOKENS)


def same_file(one: Path, other: Path) -> bool:
    """Bit for bit, and as tensors."""
    first, second = load_tensors(one), load_tensors(other)
    equal = all(torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8)) for name in first)
    return one.read_bytes() == other.read_bytes() and first.keys() == second.keys() and equal
