"""The trainer's side of a distributed checkpoint: who writes and checks what, when it is one. Imports no megatron."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gyre.trainers.manifest import Manifest, Written, seal
from gyre.trainers.port import WeightsRefused
from schemas.refs import WeightsRef

Ask = Callable[..., list[Any]]
"""(name, arguments of each rank) -> what each answers."""
Shapes = Mapping[str, tuple[int, ...]]


def save_optimizer(ask: Ask, ranks: int, folder: Path, sequence: int, shapes: Shapes) -> WeightsRef:
    """Have each rank write its part of the optimizer state; it is on disk when this returns.

    Args:
        ask: tells the ranks.
        ranks: how many.
        folder: of the run; the checkpoint is `optimizer/<digest>` in it.
        sequence: position in the run's log, kept inside.
        shapes: of the model's parameters, by name.
    Raises:
        OSError: the disk is full or not writable; nothing stays behind.
    """
    home = folder / "optimizer"
    home.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(suffix=".tmp", dir=home))
    try:
        answers = ask("save_optimizer", *([aside, sequence] for _ in range(ranks)))
        files: dict[str, Written] = {name: each for found, _ in answers for name, each in found.items()}
        return seal(aside, Manifest(sequence, answers[0][1], _model(shapes), files))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def restore_optimizer(ask: Ask, ranks: int, folder: Path) -> None:
    """Have each rank take its part; the files were checked."""
    ask("load_optimizer", *([folder] for _ in range(ranks)))


def check_optimizer(ask: Ask, ranks: int, folder: Path, shapes: Shapes) -> None:
    """Have the ranks read all files, each a share of them, and hold them against their digests.

    Args:
        ask: tells the ranks.
        ranks: how many.
        folder: of the checkpoint.
        shapes: of the model's parameters, by name.
    Raises:
        WeightsRefused: a file is damaged or missing, or it is of another model.
    """
    manifest = Manifest.read(folder)
    if manifest.model != _model(shapes):
        raise WeightsRefused(f"{folder}: its parameters have other names or shapes: it belongs to another model")
    names = sorted(manifest.files)
    ask("check_files", *([manifest, folder, names[rank::ranks]] for rank in range(ranks)))


def _model(shapes: Shapes) -> str:
    return hashlib.sha256(json.dumps([(name, list(each)) for name, each in shapes.items()]).encode()).hexdigest()
