"""Count the tokens of all model calls, live, from CALL.

    gyre attach examples/consumers/token_counter.py:TokenCounter demo --durable tokens

One line for every `each` calls and one at the end. The counts are kept beside the position: killed and attached again,
it counts no call twice and misses none.
"""

from typing import Any

from schemas.calls import ModelCallRecorded
from services.consumer import At


class TokenCounter:
    """Adds up what was computed, what a cache spared and what was sampled."""

    reads = (ModelCallRecorded,)

    def __init__(self, each: str = "100") -> None:
        """`each`: calls between two lines."""
        self._each = int(each)
        self._counts = {"calls": 0, "prefill": 0, "cached": 0, "sampled": 0}

    def handle(self, event: ModelCallRecorded, at: At) -> None:
        """One call more; ids travel as four bytes each."""
        context = event.prefix_tokens + len(event.input_ids) // 4
        self._counts["calls"] += 1
        self._counts["prefill"] += context - event.cached_tokens
        self._counts["cached"] += event.cached_tokens
        self._counts["sampled"] += len(event.output_ids) // 4
        if self._counts["calls"] % self._each == 0:
            self._tell()

    def save(self) -> Any:
        """What is kept beside the position."""
        return self._counts

    def load(self, kept: Any) -> None:
        """What was kept."""
        self._counts = kept

    def close(self) -> None:
        """The last line."""
        self._tell()

    def _tell(self) -> None:
        print(" ".join(f"{name}={count}" for name, count in self._counts.items()), flush=True)
