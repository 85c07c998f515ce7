"""Say it when reward collapses: one line in a file, as a chat's incoming webhook would get it.

    gyre attach examples/consumers/reward_alert.py:RewardAlert demo --durable alerts --option file=alerts.jsonl

The mean of the last `window` groups is compared with that of as many before them. Both are kept beside the position,
so that a consumer that was killed goes on with what it knew and does not say again what it had said before it saved.
Copy this file and put your webhook where `_say` writes.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from schemas.rewards import GroupReady
from services.consumer import At


class RewardAlert:
    """Compares the latest groups' reward with that of those before."""

    reads = (GroupReady,)

    def __init__(self, file: str = "alerts.jsonl", window: str = "8", fall: str = "0.5") -> None:
        """`fall`: the share of the former reward below which it is a collapse."""
        self._file, self._window, self._fall = Path(file), int(window), float(fall)
        self._recent: list[float] = []
        self._fallen = False

    def handle(self, event: GroupReady, at: At) -> None:
        """One group more; a collapse is said once, until reward has recovered."""
        rewards = [each.reward for each in event.outcomes if each.reward is not None]
        if not rewards:
            return
        self._recent = [*self._recent, fmean(rewards)][-2 * self._window :]
        if len(self._recent) == 2 * self._window:
            before, now = fmean(self._recent[: self._window]), fmean(self._recent[self._window :])
            fallen = now < self._fall * before
            if fallen and not self._fallen:
                self._say(f"run {at.run}: reward {now:.2f} at group {event.group}, {before:.2f} before", at)
            self._fallen = fallen

    def save(self) -> Any:
        """What is kept beside the position."""
        return {"recent": self._recent, "fallen": self._fallen}

    def load(self, kept: Any) -> None:
        """What was kept."""
        self._recent, self._fallen = kept["recent"], kept["fallen"]

    def _say(self, text: str, at: At) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"text": text, "event": at.id}) + "\n")
