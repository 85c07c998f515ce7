"""Where each limit of the doctor comes from: the run's own configuration, as `services.doctor` reads it.

The few that are plain numbers say why they are.
"""

from dataclasses import dataclass
from math import ceil

RARE = 1e-6
"""Chance below which a row of equal outcomes is no coincidence: a million groups would show one by luck."""
IN_A_ROW = 3
"""The same mishap so often in a row is no accident: the least number that shows a pattern."""
HALF = 0.5
"""Most of a window: what happens to more than half is the rule and not the exception."""
FAR = 10.0
"""Times the usual: an order of magnitude."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is normal in one run."""

    groups: int
    """B."""
    executions: int
    """N."""
    phi: float
    mu: int
    steps: int
    """S."""
    cells: int
    """Cells that a run has, standalone ones included."""
    beat: float
    """cells.heartbeat_seconds: clocks that differ by less mislead nobody."""
    silence: float
    """cells.lost_after_seconds: what takes longer than this without a word, the run itself takes for death."""
    grace: float
    """harness.kill_grace, seconds."""
    attempts: int
    """reward.attempts."""
    scoring: float
    """reward.budget_seconds and the pauses between attempts, together."""
    ratio_low: float
    ratio_high: float
    weight_cap: float
    """objective.*: outside these an execution or a token is not trained on as it was sampled."""
    max_tokens: int
    """rollout.max_tokens."""
    parses_tools: bool
    """Whether rollout.tool_parser reads tool calls at all."""
    redeliveries: int
    """Claimants that a micro-step may lose; one more aborts the step."""

    @property
    def batch(self) -> int:
        """B N: executions in a batch, the window in which shares are taken."""
        return self.groups * self.executions

    @property
    def closing(self) -> float:
        """What an execution may take beyond its deadline: to be ended, and to have its workspace kept."""
        return self.grace + self.silence

    @property
    def stalest(self) -> int:
        """Staleness at which a group was overtaken by a whole burst.

        (phi + mu) B groups are under way after a dispatch, so in the order of dispatch the last of them is consumed
        ceil(phi + mu) - 1 steps later; a straggler waits longer.
        """
        return ceil(self.phi + self.mu) - 1 + self.mu

    @property
    def short_life(self) -> float:
        """A process that lives less than four times as long as its loss goes unnoticed is away most of the time."""
        return 4 * self.silence
