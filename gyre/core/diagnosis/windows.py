"""Shares over the latest so many facts, and mishaps in a row: what detectors count with, in bounded memory."""

from collections import deque
from dataclasses import dataclass, field

from gyre.core.diagnosis.finding import MOST_EVIDENCE, At


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many, between two events."""

    bad: int
    size: int
    first: At
    last: At
    examples: tuple[At, ...]
    """The first few bad ones."""

    @property
    def value(self) -> float:
        """In [0, 1]."""
        return self.bad / self.size


class Window:
    """The last `size` yes-or-no facts, and the worst that they have been."""

    def __init__(self, size: int) -> None:
        """Nothing is said of fewer than `size`."""
        self._size, self._bad = size, 0
        self._facts: deque[tuple[At, bool]] = deque()
        self.worst: Share | None = None
        """None before the window was full once, or when nothing bad was in it."""

    def add(self, at: At, bad: bool) -> None:
        """One more."""
        self._facts.append((at, bad))
        self._bad += bad
        if len(self._facts) > self._size:
            self._bad -= self._facts.popleft()[1]
        self._judge()

    def correct(self, at: At, bad: bool) -> None:
        """One that is still in it turned out otherwise."""
        for place, (where, was) in enumerate(self._facts):
            if where == at:
                self._facts[place] = (at, bad)
                self._bad += bad - was
                self._judge()

    def _judge(self) -> None:
        if len(self._facts) == self._size and self._bad > (self.worst.bad if self.worst else 0):
            self.worst = self._share()

    def _share(self) -> Share:
        found = (at for at, bad in self._facts if bad)
        examples = tuple(at for at, _ in zip(found, range(MOST_EVIDENCE), strict=False))
        return Share(self._bad, self._size, self._facts[0][0], self._facts[-1][0], examples)


@dataclass(slots=True, eq=False)
class Lives:
    """How long the processes lived that took one place, one after the other."""

    short: float
    """A life below this is short, seconds."""
    row: int
    """So many short ones in a row are found."""
    began: deque[At] = field(default_factory=deque)
    found: tuple[At, ...] = ()
    """The beginnings around the first row that was found: one more than lives."""
    total: int = 0

    def begin(self, at: At) -> None:
        """Another one begins here."""
        self.total += 1
        self.began.append(at)
        if len(self.began) <= self.row:
            return
        if not self.found and all(
            later.time - earlier.time < self.short * 1e9
            for earlier, later in zip(self.began, list(self.began)[1:], strict=False)
        ):
            self.found = tuple(self.began)
        self.began.popleft()
