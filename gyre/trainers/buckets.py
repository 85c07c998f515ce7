"""The policy of modelled compute, without torch: one number a bucket of token ids, and its file at version 0."""

from pathlib import Path

import numpy as np

from gyre.trainers.checkpoint import METADATA

BUCKETS = 256
NAME = "buckets"
"""Of the one tensor."""


def write_first(path: Path) -> None:
    """Policy version 0 as a trainer would save it."""
    from safetensors.numpy import save_file

    save_file({NAME: np.zeros(BUCKETS, dtype=np.float32)}, path, metadata=METADATA)
