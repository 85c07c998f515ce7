"""What one process counts of itself, in the Prometheus text format: what it said, what that took, how far it read.

Each fact of a run is said by one kind of service, so each is counted where it is said: model calls and tokens at the
proxy, terminations at the runner, updates at the core. What concerns the run as a whole (`services.run_meters`) stands
at the scheduler. Counts begin with the process; labels are few and none of them is an id of the run's content.
"""

from collections.abc import Callable, Mapping
from typing import Any

from faststream.nats.prometheus import NatsPrometheusMiddleware
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bus.errors import BusError
from schemas.calls import ModelCallRecorded
from schemas.dispatch import ExecutionTerminated
from schemas.envelope import Commit
from schemas.rewards import RewardAssigned
from schemas.training import MicroStepCompleted, OptimizerStepped
from services.lag import Position
from services.place import Place

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_SLOW = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_ID_BYTES = 4
_OWN = ("run", "service", "instance")


class Meters:
    """The registry of one process."""

    def __init__(self, place: Place) -> None:
        """Everything is labelled with the run, the service and the process."""
        self.registry = CollectorRegistry()
        self.before: list[Callable[[], None]] = []
        """Called before an exposition."""
        self.middleware = NatsPrometheusMiddleware(registry=self.registry, app_name=place.service)
        """Counts what the edge itself hears and says on NATS; one for a registry, whatever starts anew."""
        self._labels = {"run": place.run, "service": place.service, "instance": place.instance}
        self._sequence = self._gauge("gyre_sequence", "Everything up to here was read.", "stream")
        self._lag = self._gauge("gyre_replay_lag", "Sequences still to be read.", "stream")
        self._ready = self._gauge("gyre_ready", "1 while the process is ready.")
        self._events = self._counter("gyre_events", "Events said.", "type")
        self._append = self._histogram("gyre_append_seconds", "From saying a commit until it is stored.", _FAST)
        self._refused = self._counter("gyre_appends_refused", "Commits that were not stored.", "reason")
        self._said: Mapping[type, Callable[[Any], None]] = _counted_by(self)

    def standing(self, ready: bool, positions: Mapping[str, Position]) -> None:
        """How the process does now; a log whose position is unknown keeps none."""
        self._ready.labels(**self._labels).set(ready)
        for gauge in (self._sequence, self._lag):
            gauge.clear()
        for stream, position in positions.items():
            self._sequence.labels(**self._labels, stream=stream).set(position.sequence)
            self._lag.labels(**self._labels, stream=stream).set(position.lag)

    def said(self, commit: Commit, seconds: float) -> None:
        """A commit was stored."""
        self._append.labels(**self._labels).observe(seconds)
        for event in commit.events:
            self._events.labels(**self._labels, type=event.type).inc()
            if (count := self._said.get(type(event))) is not None:
                count(event)

    def refused(self, error: BusError) -> None:
        """A commit was not stored."""
        self._refused.labels(**self._labels, reason=type(error).__name__).inc()

    def exposition(self) -> bytes:
        """All of it."""
        for prepare in self.before:
            prepare()
        return generate_latest(self.registry)

    def add_counter(self, name: str, text: str, *more: str) -> Callable[..., None]:
        """A counter of one's own: call it with an amount and the further labels."""
        counter = self._counter(name, text, *more)
        return lambda amount, **labels: counter.labels(**self._labels, **labels).inc(amount)

    def add_gauge(self, name: str, text: str, *more: str) -> Callable[..., None]:
        """A gauge of one's own: call it with a value and the further labels."""
        gauge = self._gauge(name, text, *more)
        return lambda value, **labels: gauge.labels(**self._labels, **labels).set(value)

    def add_histogram(self, name: str, text: str, *more: str) -> Callable[..., None]:
        """A histogram of durations of one's own, seconds: call it with one and the further labels."""
        histogram = self._histogram(name, text, _SLOW, *more)
        return lambda seconds, **labels: histogram.labels(**self._labels, **labels).observe(seconds)

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        return Gauge(name, text, (*_OWN, *more), registry=self.registry)

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(name, text, (*_OWN, *more), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *more: str) -> Histogram:
        return Histogram(name, text, (*_OWN, *more), buckets=buckets, registry=self.registry)


def _counted_by(meters: Meters) -> Mapping[type, Callable[[Any], None]]:
    """Event -> how it is counted."""
    return {
        ModelCallRecorded: _calls(meters),
        ExecutionTerminated: _terminations(meters),
        RewardAssigned: _rewards(meters),
        MicroStepCompleted: _micro_steps(meters),
        OptimizerStepped: _updates(meters),
    }


def _calls(meters: Meters) -> Callable[[ModelCallRecorded], None]:
    calls = meters.add_counter("gyre_calls", "Model calls recorded.", "kind", "finish")
    tokens = meters.add_counter("gyre_tokens", "Tokens of model calls: computed, found in a cache, sampled.", "kind")
    seconds = meters.add_histogram("gyre_call_seconds", "Of a model call: waiting, in the engine, in all.", "part")

    def count(event: ModelCallRecorded) -> None:
        calls(1, kind=event.kind, finish=event.finish)
        context = event.prefix_tokens + len(event.input_ids) // _ID_BYTES
        tokens(max(0, context - event.cached_tokens), kind="prefill")
        tokens(event.cached_tokens, kind="cached")
        tokens(len(event.output_ids) // _ID_BYTES, kind="sampled")
        seconds(event.queue_seconds, part="queue")
        seconds(event.engine_seconds, part="engine")
        seconds(event.total_seconds, part="total")

    return count


def _terminations(meters: Meters) -> Callable[[ExecutionTerminated], None]:
    ended = meters.add_counter("gyre_terminations", "Executions that ended.", "reason")
    return lambda event: ended(1, reason=event.reason)


def _rewards(meters: Meters) -> Callable[[RewardAssigned], None]:
    number = meters.add_counter("gyre_rewards", "Rewards assigned.")
    total = meters.add_gauge("gyre_reward_last", "The reward assigned last.")

    def count(event: RewardAssigned) -> None:
        number(1)
        total(event.reward)

    return count


def _micro_steps(meters: Meters) -> Callable[[MicroStepCompleted], None]:
    seconds = meters.add_histogram("gyre_micro_step_seconds", "Of a micro-step, claimed to completed.")
    return lambda event: seconds(event.seconds)


def _updates(meters: Meters) -> Callable[[OptimizerStepped], None]:
    seconds = meters.add_histogram("gyre_update_seconds", "Of an optimizer update, weights on disk included.")
    loss = meters.add_gauge("gyre_loss", "Of the latest step.")
    norm = meters.add_gauge("gyre_gradient_norm", "Of the latest step, before clipping.")

    def count(event: OptimizerStepped) -> None:
        seconds(event.seconds)
        loss(event.loss)
        norm(event.gradient_norm)

    return count
