"""A pipeline that stays filled from one micro-step to the next, against one that is drained after each.

    python -m benchmarks.pipeline [--stages 2] [--micro-steps 16] [--row-tokens 512] [--rounds 5] [--json]

Micro-steps of one row each go through the same ranks of megatron-core in turns of both ways; the gradients must be
equal. Without a GPU: an environment that has it, `PYTHONPATH=tests/backends/shims`, and a core for each stage.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np
from torch import Tensor

from gyre.models.load import NANO
from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from schemas.base import pack_floats, pack_ints
from schemas.training import MicroStepEnqueued, Row, Segment


def micro_steps(count: int, tokens: int, vocabulary: int) -> list[MicroStepEnqueued]:
    """One row of one segment each, of random tokens; half of them are targets."""
    random = np.random.default_rng(1)
    made = []
    for number in range(count):
        target = np.arange(tokens) >= tokens // 2
        segment = Segment(
            execution=f"x{number}",
            leaf="main",
            ids=pack_ints(random.integers(vocabulary, size=tokens).tolist()),
            target=target.astype(np.uint8).tobytes(),
            logprobs=pack_floats(np.where(target, -math.log(vocabulary), 0.0)),
            advantage=1.0,
            weight=1.0 / (count * int(target.sum())),
        )
        row = Row(segments=(segment,))
        made.append(MicroStepEnqueued(step=1, micro_step=number, kind="train", rows=(row,), tokens=tokens))
    return made


def drained(trainer: MegatronTrainer, steps: Sequence[MicroStepEnqueued]) -> None:
    """Emptied after each."""
    for each in steps:
        trainer.micro_step(each)


def filled(trainer: MegatronTrainer, steps: Sequence[MicroStepEnqueued]) -> None:
    """As a cell does it: as many in hand as the trainer wants, and drained at the end."""
    in_hand = 0
    for each in steps:
        trainer.begin(each)
        in_hand += 1
        while in_hand >= trainer.depth:
            in_hand -= len(trainer.advance())
    trainer.drain()


WAYS: dict[str, Callable[[MegatronTrainer, Sequence[MicroStepEnqueued]], None]] = {"drained": drained, "filled": filled}


def measure(trainer: MegatronTrainer, steps: Sequence[MicroStepEnqueued], rounds: int) -> dict[str, object]:
    """Both in turns; medians over the rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    gradients: dict[str, Tensor] = {}
    passages = {}
    for _ in range(rounds):
        for name, way in WAYS.items():
            trainer.zero()
            began = perf_counter()
            way(trainer, steps)
            seconds[name].append(perf_counter() - began)
            gradients[name], passages[name] = trainer.gradient.double(), trainer.passage
    found: dict[str, object] = {f"{name}_seconds": round(median(each), 3) for name, each in seconds.items()}
    ratios = [one / other for one, other in zip(seconds["drained"], seconds["filled"], strict=True)]
    apart = float((gradients["filled"] - gradients["drained"]).norm() / gradients["drained"].norm())
    found |= {"ratio": round(median(ratios), 2), "gradient_distance": float(f"{apart:.1e}")}
    return found | {name: each.model_dump() for name, each in passages.items() if each is not None}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stages", type=int, default=2, help="of the pipeline, a rank each (default 2)")
    parser.add_argument("--micro-steps", type=int, default=16, help="of a batch, one row each (default 16)")
    parser.add_argument("--row-tokens", type=int, default=512, help="in a row (default 512)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take the median of (default 5)")
    parser.add_argument("--backend", default="gloo", help="of torch.distributed (default gloo)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a line")
    options = parser.parse_args(arguments)
    vocabulary = json.loads((NANO / "config.json").read_text())["vocab_size"]
    ranks = Ranks(pipeline=options.stages, backend=options.backend)
    trainer = MegatronTrainer(NANO, 1.0, Settings(), AdamSettings(), ranks)
    try:
        trainer.load(NANO / "model.safetensors")
        found = measure(trainer, micro_steps(options.micro_steps, options.row_tokens, vocabulary), options.rounds)
    finally:
        trainer.close()
    if options.json:
        print(json.dumps(vars(options) | found))
        return
    print(
        f"{options.stages} stages, {options.micro_steps} micro-steps of {options.row_tokens} tokens: "
        f"{found['drained_seconds']} s drained after each, {found['filled_seconds']} s filled: {found['ratio']} times; "
        f"gradients {found['gradient_distance']:.0e} apart"
    )


if __name__ == "__main__":
    main()
