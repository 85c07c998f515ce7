"""Series that stay small however long a run is: a picture needs no more points than it has columns."""

from collections.abc import Sequence

from gyre.core.timeline import Interval, Level, Standing

BINS = 512
FIRST_WIDTH = 1 / 64
"""Seconds: the bins of a run too short to fill them."""


class Bins:
    """Time averages of some quantities in at most `BINS` equal bins, whose width doubles whenever time outgrows them.

    Exact at any width, since a bin keeps the integral over its time.
    """

    def __init__(self, quantities: int) -> None:
        """So many quantities, from time 0 on."""
        self.width = FIRST_WIDTH
        self._quantities = quantities
        self._sums: list[list[float]] = []

    def add(self, start: float, end: float, values: Sequence[float]) -> None:
        """The quantities had these values from `start` to `end`, seconds; times never go back.

        The width is a power of two, so that a time's bin is found without rounding.
        """
        while end > self.width * BINS:
            self._double()
        while start < end:
            place = int(start / self.width)
            while len(self._sums) <= place:
                self._sums.append([0.0] * self._quantities)
            edge = min(end, (place + 1) * self.width)
            sums = self._sums[place]
            for index, value in enumerate(values):
                sums[index] += value * (edge - start)
            start = edge

    def means(self, end: float) -> list[tuple[float, float, list[float]]]:
        """(start, end, mean of each quantity) of each bin, the last one cut at `end`."""
        found = []
        for place, sums in enumerate(self._sums):
            start, until = place * self.width, min(end, (place + 1) * self.width)
            if until > start:
                found.append((start, until, [each / (until - start) for each in sums]))
        return found

    def _double(self) -> None:
        if len(self._sums) % 2:
            self._sums.append([0.0] * self._quantities)
        pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
        self._sums = [[one + other for one, other in zip(*pair, strict=True)] for pair in pairs]
        self.width *= 2


def thin_levels(levels: Sequence[Level], most: int) -> list[Level]:
    """The last level of each of `most` equal spans of time; the very last one is always kept."""
    start, width = levels[0].seconds, (levels[-1].seconds - levels[0].seconds) / most
    if width <= 0:
        return [levels[-1]]
    return list({int((level.seconds - start) / width): level for level in levels}.values())


def thin_intervals(intervals: Sequence[Interval], most: int) -> list[Interval]:
    """Each of `most` equal spans of time with the standing that fills most of it, equal neighbours joined."""
    start, end = intervals[0].start, intervals[-1].end
    width = (end - start) / most
    if width <= 0:
        return [intervals[-1]]
    filled: list[dict[Standing, float]] = [{} for _ in range(most)]
    for each in intervals:
        place = min(most - 1, int((each.start - start) / width))
        while place < most and start + place * width < each.end:
            low, high = max(each.start, start + place * width), min(each.end, start + (place + 1) * width)
            filled[place][each.standing] = filled[place].get(each.standing, 0.0) + max(0.0, high - low)
            place += 1
    thinned: list[Interval] = []
    for place, shares in enumerate(filled):
        standing = max(shares, key=lambda each: shares[each]) if shares else thinned[-1].standing
        until = end if place == most - 1 else start + (place + 1) * width
        if thinned and thinned[-1].standing == standing:
            thinned[-1] = Interval(thinned[-1].start, until, standing)
        else:
            thinned.append(Interval(start + place * width, until, standing))
    return thinned
