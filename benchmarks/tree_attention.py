"""Training with shared prefixes against the expanded form: same trajectories, packer and trainer, in one process.

    python benchmarks/tree_attention.py [--model nano] [--layers 2] [--rows 2048,4096] [--cases group,tree] [--json]

`group`: 6 executions of one task that share 600 tokens of system prompt, tools and task, and say 500 of their own.
`tree`: one execution with the four leaves that the paper's Appendix C would admit; of its paths the numbers of messages
are known, not of tokens: here 5 a message. Half of what is not prompt is targets. Each form packs for itself, into rows
of at most so many tokens as it counts them; forward and backward passes of all its micro-steps are timed.
"""

import argparse
import json
import resource
from collections.abc import Iterable, Iterator, Sequence
from math import log
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from gyre.models.load import find_model, load_model
from gyre.rl.algorithms.port import Settings
from gyre.rl.packing import Shape, pack
from gyre.rl.prefixes import prefixes
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.torch import TorchTrainer
from schemas.base import pack_floats, pack_ints
from schemas.training import MicroStepEnqueued, Row, TrajectoriesAdmitted, Trajectory

_TURN = 25  # tokens that the policy says before a tool answers with as many
_MESSAGE = 5  # tokens of a message of Appendix C
_WHOLE = 1 << 20  # micro-steps hold any case: what is measured is rows


def trajectory(leaf: str, context: np.ndarray, own: np.ndarray, vocabulary: int) -> Trajectory:
    """A path whose own tokens are turns of policy and tools; it ends with the policy's."""
    target = np.concatenate([np.zeros(len(context), bool), (np.arange(len(own))[::-1] // _TURN) % 2 == 0])
    ids = np.concatenate([context, own])
    return Trajectory(
        leaf=leaf,
        role="main",
        ids=pack_ints(ids.tolist()),
        target=target.astype(np.uint8).tobytes(),
        logprobs=pack_floats(np.where(target, -log(vocabulary), 0.0)),  # the ratio stays low: nothing is masked
        targets=int(target.sum()),
    )


def admitted(execution: str, drawn: Sequence[Trajectory]) -> TrajectoriesAdmitted:
    """As admission says it."""
    total = sum(each.targets for each in drawn)
    return TrajectoriesAdmitted(
        execution=execution, group="g", version=0, advantage=1.0, targets=total, seed=0, trajectories=tuple(drawn)
    )


def group(vocabulary: int) -> tuple[TrajectoriesAdmitted, ...]:
    """Six executions behind one prompt."""
    random = np.random.default_rng(1)
    prompt = random.integers(vocabulary, size=600)
    every = (trajectory(f"l{each}", prompt, random.integers(vocabulary, size=500), vocabulary) for each in range(6))
    return tuple(admitted(f"x{place}", [each]) for place, each in enumerate(every))


def tree(vocabulary: int) -> tuple[TrajectoriesAdmitted, ...]:
    """Main up to its compaction, the summary that forks off it, main after it, and a sub-agent under its own root."""
    random = np.random.default_rng(2)

    def says(messages: int) -> np.ndarray:
        return random.integers(vocabulary, size=_MESSAGE * messages)

    system, nothing, prefix = says(30), says(0), says(168)
    whole = np.concatenate([system, prefix])
    drawn = [
        trajectory("main", system, np.concatenate([prefix, says(5)]), vocabulary),
        trajectory("summary", whole, says(5), vocabulary),
        trajectory("after", system, says(160), vocabulary),
        trajectory("sub", nothing, says(80), vocabulary),
    ]
    return (admitted("x0", drawn),)


CASES = {"group": group, "tree": tree}


def computed(row: Row, share: bool) -> int:
    """Tokens that the trainer computes for a row."""
    ids = [np.frombuffer(each.ids, "<i4") for each in row.segments]
    found = prefixes(ids)
    return sum(map(len, ids)) - (sum(found.common) if share else 0)


def micro_steps(parts: tuple[TrajectoriesAdmitted, ...], row_tokens: int, share: bool) -> Iterator[MicroStepEnqueued]:
    """What the packer would queue."""
    shape = Shape(1, len(parts), row_tokens, _WHOLE, share)
    for place, rows in enumerate(pack(parts, shape).whole):
        tokens = sum(computed(each, share) for each in rows)
        yield MicroStepEnqueued(step=1, micro_step=place, kind="train", rows=rows, tokens=tokens)


def run(trainer: TorchTrainer, steps: Iterable[MicroStepEnqueued]) -> tuple[float, float]:
    """Seconds of wall clock and of this process's processors."""
    trainer.zero()
    wall, cpu = perf_counter(), process_time()
    for each in steps:
        trainer.micro_step(each)
    return perf_counter() - wall, process_time() - cpu


def compare(
    trainers: dict[str, TorchTrainer], case: str, row_tokens: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Both forms in turns; medians over the rounds."""
    parts = CASES[case](options.vocabulary)
    steps = {name: list(micro_steps(parts, row_tokens, name == "shared")) for name in trainers}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trainers}
    for _ in range(options.rounds):
        for name, trainer in trainers.items():
            found[name].append(run(trainer, steps[name]))
    result: dict[str, Any] = {"case": case, "row_tokens": row_tokens}
    for name in trainers:
        result[f"{name}_rows"] = sum(len(each.rows) for each in steps[name])
        result[f"{name}_tokens"] = sum(each.tokens for each in steps[name])
        result[f"{name}_seconds"] = round(median(wall for wall, _ in found[name]), 3)
        result[f"{name}_cpu_seconds"] = round(median(cpu for _, cpu in found[name]), 3)
    one, other = trainers["expanded"].gradient.double(), trainers["shared"].gradient.double()
    result["tokens_ratio"] = round(result["shared_tokens"] / result["expanded_tokens"], 3)
    result["cpu_ratio"] = round(result["shared_cpu_seconds"] / result["expanded_cpu_seconds"], 3)
    result["gradient_distance"] = float(f"{float((one - other).norm() / one.norm()):.1e}")
    return result


def load(options: argparse.Namespace, share: bool) -> TorchTrainer:
    """A trainer of its own, over the first layers of the model if so asked."""
    model: Any = load_model(find_model(options.model))[0]
    if options.layers:
        model.model.layers = model.model.layers[: options.layers]
    options.vocabulary = model.get_input_embeddings().num_embeddings
    kept = options.activation_mb * 1_000_000
    return TorchTrainer(model, 1.0, Settings(), AdamSettings(), share_prefixes=share, activation_bytes=kept)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="nano", help='"nano", "smollm2" or a folder (default: nano)')
    parser.add_argument(
        "--layers", type=int, default=0, help="decoder layers to keep, 0: all; for big models (default 0)"
    )
    parser.add_argument("--rows", default="2048,4096", help="most tokens in a row, comma-separated")
    parser.add_argument("--cases", default="group,tree", help="comma-separated (default: group,tree)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take the median of (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--activation-mb", type=int, default=512, help="as packing.activation_mb (default 512)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    trainers = {"expanded": load(options, share=False), "shared": load(options, share=True)}
    pairs = [(case, int(rows)) for case in options.cases.split(",") for rows in options.rows.split(",")]
    results = [compare(trainers, case, rows, options) for case, rows in pairs]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    if options.json:
        print(
            json.dumps(
                {"model": options.model, "layers": options.layers, "peak_gib": round(peak, 2), "results": results}
            )
        )
        return
    for each in results:
        tokens = f"{each['expanded_tokens']} -> {each['shared_tokens']} ({each['tokens_ratio']:.2f})"
        cpu = f"{each['expanded_cpu_seconds']:.2f} -> {each['shared_cpu_seconds']:.2f} ({each['cpu_ratio']:.2f})"
        apart = f"gradients {each['gradient_distance']:.0e} apart"
        print(f"{each['case']}, rows of {each['row_tokens']}: tokens {tokens}, CPU seconds {cpu}, {apart}")


if __name__ == "__main__":
    main()
