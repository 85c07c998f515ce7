"""The cells of a timeline while it is folded: who stands how, what is routed where, and when each was in use."""

from dataclasses import dataclass, field

from gyre.core.roles import CORE
from gyre.core.timeline import STANDINGS, Interval, Lane, Standing, Use
from gyre.core.timeline_series import Bins, thin_intervals
from schemas.roles import CellRole

INTERVALS = 1 << 16
"""Most intervals kept over all cells together (but `LANE_INTERVALS` each in any case); beyond it, half as many."""
LANE_INTERVALS = 64


@dataclass(slots=True, eq=False)
class Track:
    """One cell; times are seconds since the first event."""

    cell: int
    capacity: int
    instance: str
    since: float
    """When it came to stand so."""
    settled: float
    """Up to when its sums hold."""
    spread: float
    """`Cells.spread` at `settled`."""
    standing: Standing = "rollout"
    role: CellRole = "rollout"
    """What it is, or was before the transition that is under way."""
    routed: int = 0
    """Running executions whose route is here."""
    claims: int = 0
    """Micro-steps claimed and not completed."""
    updating: bool = False
    """It reduces and updates: the core alone."""
    seconds: dict[Standing, float] = field(default_factory=lambda: dict.fromkeys(STANDINGS, 0.0))
    used: float = 0.0
    intervals: list[Interval] = field(default_factory=list)

    @property
    def places(self) -> int:
        """What it adds to C_R."""
        return self.capacity if self.standing == "rollout" else 0

    @property
    def working(self) -> bool:
        """Whether it is in use as a trainer."""
        return self.standing == "train" and (self.claims > 0 or self.updating)

    def settle(self, now: float, spread: float) -> None:
        """Add what went on until now, before anything changes."""
        passed = now - self.settled
        self.seconds[self.standing] += passed
        if self.standing == "rollout":
            self.used += min(passed, passed * self.routed / self.capacity + spread - self.spread)
        elif self.working:
            self.used += passed
        self.settled, self.spread = now, spread

    def stand(self, standing: Standing, most: int) -> None:
        """From the settled time on it stands so; beyond `most` intervals half as many are kept."""
        if standing == self.standing:
            return
        self.intervals.extend(self._latest())
        if len(self.intervals) > most:
            self.intervals = thin_intervals(self.intervals, most // 2)
        self.standing, self.since = standing, self.settled
        if standing != "train":
            self.claims, self.updating = 0, False

    def lane(self) -> Lane:
        """The cell up to its settled time."""
        return Lane(self.cell, self.capacity, (*self.intervals, *self._latest()), dict(self.seconds), self.used)

    def _latest(self) -> list[Interval]:
        """What took no time leaves no interval."""
        return [Interval(self.since, self.settled, self.standing)] if self.settled > self.since else []


class Cells:
    """All cells and the running executions, with their sums; each change costs the same however many there are."""

    def __init__(self) -> None:
        """None yet, at time 0."""
        self.now = 0.0
        self.capacity = 0
        """C_R, executions."""
        self.spread = 0.0
        """Seconds so far, each weighed by the share of C_R that executions without a route fill."""
        self._tracks: dict[int, Track] = {}
        self._standing: dict[Standing, int] = dict.fromkeys(STANDINGS, 0)
        self._working = 0
        self._routes: dict[str, int | None] = {}
        """Running execution -> its cell, if it has one."""
        self._unrouted = 0
        self._bins = Bins(6)

    def pass_to(self, now: float) -> None:
        """Time goes on, never back."""
        passed = now - self.now
        if passed <= 0:
            return
        serving, training = self._standing["rollout"], self._standing["train"]
        moving = self._standing["to_train"] + self._standing["to_rollout"]
        filled = serving * self._share(len(self._routes))
        values = (filled, serving - filled, self._working, training - self._working, moving, self._standing["lost"])
        self._bins.add(self.now, now, values)
        self.spread += passed * self._share(self._unrouted)
        self.now = now

    def register(self, index: int, instance: str, capacity: int) -> None:
        """A process of this cell came, in rollout; the same one again changes nothing."""
        track = self._tracks.get(index)
        if track is not None and track.instance == instance and track.standing != "lost":
            return
        if track is None:
            track = self._tracks[index] = Track(index, capacity, instance, self.now, self.now, self.spread)
        else:
            self._take(track)
            track.stand("rollout", self._most)
            track.capacity, track.instance, track.role = capacity, instance, "rollout"
        self._put(track)

    def stand(self, index: int, instance: str, standing: Standing | None) -> None:
        """This very process stands so from now on; None: as before the transition that failed."""
        track = self._tracks.get(index)
        if track is None or track.instance != instance or track.standing == "lost":
            return
        self._take(track)
        match standing:
            case "rollout" | "train" as role:
                track.role = role
        track.stand(standing or track.role, self._most)
        self._put(track)

    def launch(self, execution: str) -> bool:
        """Whether it runs now and did not before."""
        if execution in self._routes:
            return False
        self._routes[execution] = None
        self._unrouted += 1
        return True

    def end(self, execution: str) -> bool:
        """Whether it ran until now."""
        if execution not in self._routes:
            return False
        self.route(execution, None)
        del self._routes[execution]
        self._unrouted -= 1
        return True

    def route(self, execution: str, to: int | None) -> None:
        """Its calls go to this cell; nothing for what does not run (a held-out episode, one that has ended)."""
        if execution not in self._routes:
            return
        to = to if to in self._tracks else None
        for index, change in ((self._routes[execution], -1), (to, 1)):
            if index is None:
                self._unrouted += change
            else:
                self._tracks[index].settle(self.now, self.spread)
                self._tracks[index].routed += change
        self._routes[execution] = to

    def claim(self, index: int, change: int) -> None:
        """It holds one micro-step more (+1) or fewer (-1), or none any more (0)."""
        if (track := self._tracks.get(index)) is not None:
            self._take(track)
            track.claims = max(0, track.claims + change) if change else 0
            self._put(track)

    def update(self, updating: bool) -> None:
        """The core reduces and updates, or does not any more, and nobody holds a micro-step then."""
        for index, track in self._tracks.items():
            if index == CORE or track.claims:
                self._take(track)
                track.updating, track.claims = updating and index == CORE, 0
                self._put(track)

    def lanes(self) -> tuple[Lane, ...]:
        """All cells so far, by index."""
        for track in self._tracks.values():
            track.settle(self.now, self.spread)
        return tuple(self._tracks[index].lane() for index in sorted(self._tracks))

    def use(self) -> tuple[Use, ...]:
        """What the cells did in each bin of time."""
        return tuple(Use(start, end, *means) for start, end, means in self._bins.means(self.now))

    @property
    def _most(self) -> int:
        return max(LANE_INTERVALS, INTERVALS // len(self._tracks))

    def _share(self, executions: int) -> float:
        return min(1.0, executions / self.capacity) if self.capacity else 0.0

    def _take(self, track: Track) -> None:
        """Leave out of the sums over all cells one that is about to change."""
        track.settle(self.now, self.spread)
        self._standing[track.standing] -= 1
        self._working -= track.working
        self.capacity -= track.places

    def _put(self, track: Track) -> None:
        self._standing[track.standing] += 1
        self._working += track.working
        self.capacity += track.places
