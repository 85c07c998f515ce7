"""What a person sees while a run goes on: a live panel on a terminal, plain lines elsewhere. Always on stderr."""

import sys
import time
from collections import deque
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gyre.core.progress import Progress, Step

MARKS = {"rollout": ("R", "cyan"), "train": ("T", "green"), "moving": ("~", "yellow"), "lost": ("x", "red")}
WIDTH = 60
LINE_SECONDS = 5.0


class Display:
    """Shows progress; call `show` as often as you like."""

    def __init__(self) -> None:
        """A live panel if stderr is a terminal."""
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4) if sys.stderr.isatty() else None
        self._timeline: dict[int, deque[str]] = {}
        self._last_mark = 0.0
        self._last_line = 0.0
        self._said_steps = 0
        self._said_evaluations = 0

    def __enter__(self) -> Self:
        """Start the panel."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the panel."""
        if self._live:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show the run as it is now."""
        now = time.monotonic()
        if now - self._last_mark >= 0.5:  # noqa: PLR2004 - one mark each half second
            self._last_mark = now
            for cell, role in progress.roles.items():
                self._timeline.setdefault(cell, deque(maxlen=WIDTH)).append(role)
        if self._live:
            self._live.update(self._panel(progress))
            return
        for version, mean, valid in progress.evaluations[self._said_evaluations :]:
            self._console.print(f"evaluation of version {version}: {mean:.3f} over {valid} held-out episodes")
        self._said_evaluations = len(progress.evaluations)
        for step in progress.done[self._said_steps :]:
            self._console.print(step_line(step), highlight=False, soft_wrap=True)
            self._last_line = now
        self._said_steps = len(progress.done)
        if now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            self._console.print(state_line(progress), highlight=False, soft_wrap=True)

    def _panel(self, progress: Progress) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        for cell, marks in sorted(self._timeline.items()):
            line = Text()
            for role in marks:
                mark, colour = MARKS[role]
                line.append(mark, colour)
            rows.add_row(f"cell {cell}", line)
        recent = [Text(step_line(step)) for step in progress.done[-8:]]
        scores = [
            Text(f"evaluation of version {version}: {mean:.3f} over {valid} episodes")
            for version, mean, valid in progress.evaluations
        ]
        return Group(Text(state_line(progress)), rows, *recent, *scores)


def state_line(progress: Progress) -> str:
    """One line: counters, roles, the batch that fills."""
    roles = " ".join(f"{cell}:{role}" for cell, role in sorted(progress.roles.items())) or "none yet"
    batch = progress.steps[-1] if progress.steps and not progress.steps[-1].seconds else None
    filling = f"  step {batch.step}: {len(batch.staleness)} groups, {_micro(batch)}" if batch else ""
    measuring = f"  evaluating {progress.evaluating}" if progress.evaluating else ""
    counts = f"d {progress.dispatched}  p {progress.launched}  f {progress.terminated}  w {progress.waterlevel}"
    return f"{progress.seconds:6.1f} s  {counts}  ready {len(progress.ready)}  cells {roles}{filling}{measuring}"


def step_line(step: Step) -> str:
    """One line about a finished step."""
    reward = "  none" if step.reward is None else f"{step.reward:6.3f}"
    staleness = sum(step.staleness) / len(step.staleness) if step.staleness else 0.0
    rate = step.targets / step.seconds if step.seconds else 0.0
    return (
        f"step {step.step:3d}  reward {reward}  {step.seconds:5.1f} s  staleness {staleness:4.2f}  "
        f"cells {step.members}  micro-steps {step.committed}  targets/s {rate:6.0f}  loss {step.loss:+.4f}  "
        f"grad norm {step.gradient_norm:.3f}  masked {step.masked}/{step.executions}  "
        f"max|dlogp| {step.max_delta_log_p:.4f}"
    )


def _micro(step: Step) -> str:
    closed = "closed" if step.closed else "open"
    return f"micro-steps {len(step.completed)}/{step.enqueued} ({closed})"
