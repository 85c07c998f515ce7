"""The streams of a run and who feeds them; only a provisioner calls this (design §4).

EV and CALL hold the truth: nothing in them can be deleted or purged, and a full one refuses. The queues are sourced
from EV by subject transform, so that an event and its queue entry are one write. ADV keeps the server's word that an
item was delivered as often as it may be.
"""

from dataclasses import dataclass
from typing import Any

from nats.js import api

from bus.errors import Refused, StreamFull
from bus.link import Link
from bus.log import QueueName

WORKER = "w"
"""Name of the durable consumer of each queue."""

ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"
QUEUES: tuple[QueueName, ...] = ("rollout", "eval", "step")
UNLIMITED = 1_000_000_000
"""Deliveries that are never used up, at ten a second for three years."""

_MOST_DELIVERIES: dict[QueueName, int] = {"rollout": UNLIMITED, "eval": 8, "step": UNLIMITED}
_STORAGE_SHORT = (10023, 10047)


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and patience of a run's streams."""

    ev_bytes: int = 1 << 30
    """EV refuses beyond this."""
    call_bytes: int = 4 << 30
    """CALL refuses beyond this."""
    ack_wait_seconds: float = 30.0
    """Lease of a work item; it doubles with each delivery, five times at most."""
    max_deliver: int | None = None
    """Deliveries of a work item before it is parked; None: each queue's own number.

    An assessment may kill whoever makes it, so its item is parked after 8; its execution is then left out. What is
    dispatched or enqueued must come back until the log says its end, however many workers died or gave it back.
    """
    duplicate_window_seconds: float = 600.0
    """A commit sent again within this time is stored once."""
    replicas: int | None = None
    """Servers of a cluster that hold each stream; None: as many as do, one for a new stream."""

    def deliveries(self, queue: QueueName) -> int:
        """Deliveries of an item of this queue before it is parked."""
        return _MOST_DELIVERIES[queue] if self.max_deliver is None else self.max_deliver

    def backoff(self, queue: QueueName) -> list[float]:
        """Lease of the first, second, ... delivery, seconds; the last one holds for all that follow."""
        steps = min(5, self.deliveries(queue) - 1)
        return [self.ack_wait_seconds * 2**step for step in range(max(1, steps))]


def ev_stream(run: str) -> str:
    """Name of the stream of control-plane commits."""
    return f"EV_{run}"


def call_stream(run: str) -> str:
    """Name of the stream of request records."""
    return f"CALL_{run}"


def queue_stream(run: str, queue: QueueName) -> str:
    """Name of a work queue's stream."""
    return f"Q{queue.upper()}_{run}"


def advisory_stream(run: str) -> str:
    """Name of the stream of max-deliveries advisories."""
    return f"ADV_{run}"


def sources(run: str, queue: QueueName) -> tuple[str, str]:
    """(EV filter, queue subject) of the transform that feeds a queue."""
    return {
        "rollout": (f"ev.{run}.scheduler.execution.*.dispatched", f"q.{run}.rollout.{{{{wildcard(1)}}}}"),
        "eval": (f"ev.{run}.runner.execution.*.terminated", f"q.{run}.eval.{{{{wildcard(1)}}}}"),
        "step": (f"ev.{run}.packer.step.*.*", f"q.{run}.step.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"),
    }[queue]


async def provision(link: Link, run: str, limits: Limits) -> None:
    """Make the run's streams and queue consumers, or bring existing ones to these limits; repeating it is harmless."""
    await _stream(link, _log(ev_stream(run), f"ev.{run}.>", limits.ev_bytes, limits), limits)
    await _stream(link, _log(call_stream(run), f"call.{run}.>", limits.call_bytes, limits), limits)
    await _stream(link, _advisories(run), limits)
    for queue in QUEUES:
        stream = queue_stream(run, queue)
        await _stream(link, _queue(run, queue), limits)
        await _settle(
            link, f"CONSUMER.CREATE.{stream}.{WORKER}", {"stream_name": stream, "config": _worker(queue, limits)}
        )


async def _stream(link: Link, config: api.StreamConfig, limits: Limits) -> None:
    found = await link.api(f"STREAM.INFO.{config.name}")
    call = "CREATE" if "error" in found else "UPDATE"
    config.num_replicas = limits.replicas or found.get("config", {}).get("num_replicas", 1)
    await _settle(link, f"STREAM.{call}.{config.name}", config.as_dict())


async def _settle(link: Link, call: str, request: dict[str, Any]) -> None:
    error = (await link.api(call, request)).get("error")
    if error is None:
        return
    if error.get("err_code") in _STORAGE_SHORT:
        raise StreamFull(f"{call}: the limits are more than the store has left ({error['description']}); lower them")
    raise Refused(f"{call}: {error['description']}")


def _log(name: str, subjects: str, max_bytes: int, limits: Limits) -> api.StreamConfig:
    return api.StreamConfig(
        name=name,
        subjects=[subjects],
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        max_bytes=max_bytes,
        discard=api.DiscardPolicy.NEW,
        deny_delete=True,
        deny_purge=True,
        allow_direct=True,
        allow_atomic=True,
        allow_batched=True,
        duplicate_window=limits.duplicate_window_seconds,
    )


def _queue(run: str, queue: QueueName) -> api.StreamConfig:
    source, destination = sources(run, queue)
    transform = api.SubjectTransform(src=source, dest=destination)
    return api.StreamConfig(
        name=queue_stream(run, queue),
        retention=api.RetentionPolicy.WORK_QUEUE,
        storage=api.StorageType.FILE,
        allow_direct=True,
        sources=[api.StreamSource(name=ev_stream(run), subject_transforms=[transform])],
    )


def _advisories(run: str) -> api.StreamConfig:
    prefix = ADVISORIES.removesuffix(".>")
    return api.StreamConfig(
        name=advisory_stream(run),
        subjects=[f"{prefix}.{queue_stream(run, queue)}.{WORKER}" for queue in QUEUES],
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        max_msgs=100_000,
        allow_direct=True,
    )


def _worker(queue: QueueName, limits: Limits) -> dict[str, Any]:
    config = api.ConsumerConfig(
        durable_name=WORKER,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=limits.ack_wait_seconds,
        max_deliver=limits.deliveries(queue),
        backoff=limits.backoff(queue) if limits.deliveries(queue) > 1 else None,
        max_ack_pending=10_000,
    )
    return config.as_dict()
