"""What a published version costs as a delta: its bytes against the whole file's, and its making against copying memory.

    python -m benchmarks.delta_weights [--model nano|smollm2|FOLDER] [--lr 2e-4,1e-6] [--steps 20] [--json]

Real updates (Adam, `tests.weights.steps`), told in float32 and in bfloat16, each against the version before; what comes
out is compared with the whole file, bit for bit. Rates are of whole bytes, as a share of copying as many in memory in
the same minute; making includes reading both files, applying includes reading, writing, and three digests.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from gyre.trainers.checkpoint import prune
from gyre.weights.delta import apply_delta, make_delta
from schemas.refs import WeightsRef
from tests.weights.steps import same_file, updates


@dataclass(frozen=True)
class Step:
    """One version in one kind of numbers."""

    lr: float
    kind: str
    step: int
    whole: int
    """Bytes."""
    delta: int
    changed: float
    making: float
    """MB/s as a share of a copy's."""
    applying: float


def copying(size: int) -> float:
    """Seconds for a copy of so many bytes, the best of five."""
    body = np.ones(size, dtype=np.uint8)
    taken = []
    for _ in range(5):
        start = perf_counter()
        body.copy()
        taken.append(perf_counter() - start)
    return min(taken)


def told(folder: Path, base: WeightsRef, new: WeightsRef) -> tuple[int, float, float, float]:
    """Bytes of the delta, share of changed values, seconds of making and of applying it."""
    delta, found = folder / "delta", folder / "found"
    start = perf_counter()
    table = make_delta(folder / base.address, folder / new.address, (base.digest, new.digest), delta)
    made = perf_counter()
    apply_delta(delta, folder / base.address, new.digest, found)
    applied = perf_counter()
    if not same_file(found, folder / new.address):
        raise AssertionError(f"step {new.address}: the delta gives another file")
    return delta.stat().st_size, table.share, made - start, applied - made


def measure(model: str, lr: float, steps: int) -> list[Step]:
    """Every step of a training at a learning rate."""
    found: list[Step] = []
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), dict[str, WeightsRef]()
        for step, files in enumerate(updates(model, folder, steps=steps, lr=lr)):
            for kind, new in files.items():
                if kind in before:
                    copy = copying(new.size)
                    size, share, making, applying = told(folder, before[kind], new)
                    found.append(Step(lr, kind, step, new.size, size, share, copy / making, copy / applying))
            before = files
            prune(folder, list(files.values()))
    return found


def main() -> None:
    """Measure and say."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="nano")
    arguments.add_argument("--lr", default="2e-4,1e-6")
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    found = [each for lr in chosen.lr.split(",") for each in measure(chosen.model, float(lr), chosen.steps)]
    if chosen.json:
        print(json.dumps([asdict(each) for each in found]))
        return
    print("      lr  kind  step    whole bytes    delta bytes   share  changed  making  applying (of a copy's rate)")
    for each in found:
        share = each.delta / each.whole
        sizes = f"{each.whole:>14,} {each.delta:>14,}  {share:>6.4f}  {each.changed:>7.4f}"
        print(f"{each.lr:>8.0e}  {each.kind}  {each.step:>4} {sizes}  {each.making:>6.4f}  {each.applying:>8.4f}")
    for lr, kind in sorted({(each.lr, each.kind) for each in found}):
        mine = [each for each in found if (each.lr, each.kind) == (lr, kind)]
        share = sum(each.delta for each in mine) / sum(each.whole for each in mine)
        rates = f"{median(each.making for each in mine):.4f}, {median(each.applying for each in mine):.4f}"
        print(f"lr {lr:.0e} {kind}: {share:.3f} of the bytes over {len(mine)} steps; of a copy's rate {rates}")


if __name__ == "__main__":
    main()
