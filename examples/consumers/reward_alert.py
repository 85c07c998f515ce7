"""Say it when reward collapses: one line in a file, as a chat's incoming webhook would get it.

    gyre attach examples/consumers/reward_alert.py:RewardAlert demo --durable alerts --option file=alerts.jsonl

The mean reward of each group is compared with the mean of the last `window` groups. The window is kept beside the
position, so that an attached consumer that was killed goes on with what it knew, and says nothing twice that it said
before it was saved. Copy this file and put your webhook where `_say` writes.
"""

import json
from pathlib import Path
from typing import Any

from schemas.rewards import GroupReady
from services.consumer import At


class RewardAlert:
    """Compares each group's mean reward with those before it."""

    reads = (GroupReady,)

    def __init__(self, file: str = "alerts.jsonl", window: str = "8", fall: str = "0.5") -> None:
        """`fall`: the share of the usual reward below which it is a collapse."""
        self._file, self._window, self._fall = Path(file), int(window), float(fall)
        self._recent: list[float] = []

    def handle(self, event: GroupReady, at: At) -> None:
        """One group more."""
        rewards = [each.reward for each in event.outcomes if each.reward is not None]
        if not rewards:
            return
        mean = sum(rewards) / len(rewards)
        if len(self._recent) == self._window:
            usual = sum(self._recent) / self._window
            if mean < self._fall * usual:
                self._say(f"run {at.run}: reward {mean:.2f} in group {event.group}, {usual:.2f} before", at)
        self._recent = [*self._recent, mean][-self._window :]

    def save(self) -> Any:
        """What is kept beside the position."""
        return self._recent

    def load(self, kept: Any) -> None:
        """What was kept."""
        self._recent = kept

    def _say(self, text: str, at: At) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"text": text, "event": at.id}) + "\n")
