"""What can go wrong in gyre, split by what the caller should do.

GyreError
└── ConfigError     stop: a configuration that cannot be honoured
"""

from dataclasses import dataclass


class GyreError(Exception):
    """Any failure of gyre that people should read; each message is one line naming field, value and fix."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration."""

    key: str
    """Dotted path of the field, such as `schedule.phi`."""
    value: str
    """What was found there, as people would write it."""
    rule: str
    """What must hold, and what to do."""

    def __str__(self) -> str:
        """One line, for people."""
        said = f"{self.key} = {self.value}: {self.rule}" if self.value else f"{self.key}: {self.rule}"
        return said.replace("\n", "\\n")


class ConfigError(GyreError):
    """A configuration that cannot be honoured: one line for each problem, found before anything starts."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        """Keep the problems beside the text; `source` is the file they stand in ("" for none)."""
        start = f"{source}: " if source else ""
        super().__init__("\n".join(f"{start}{problem}" for problem in problems))
        self.source, self.problems = source, problems
