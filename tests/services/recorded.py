"""The recorded runs of tests/data/runs, as archives."""

from pathlib import Path

RUNS = Path(__file__).parents[1] / "data" / "runs"
SMALL = RUNS / "small.jsonl.zst"
AGAIN = RUNS / "again.jsonl.zst"
