"""Who may do what on a run's server: a user for each service, with no more than its work needs (design §4 rule 10).

Pure: from the table of speakers and the subjects follow the permissions, and from those the text of a nats-server
`authorization` block. A service says its own events on its own subjects, reads the logs through consumers that it makes
and drops itself, and pulls from its own queue. Only the provisioner makes, changes or deletes streams. An attached
consumer may ask for its next message, on the one consumer made for its user, and nothing else: a right to make
consumers would be a right to let the server publish, since the delivery subject of a consumer is no part of its call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import orjson

from bus import streams, subjects
from bus.log import QueueName
from schemas.speakers import ENTITIES, SERVICES, SINGLETONS, SPEAKERS, Stream, stream_of

ANY = subjects.ANY
"""Instead of a run: users of a server that was configured before its runs exist. Streams are not told apart then."""
PROVISIONER = "provisioner"
"""Makes the streams of a run, and says its first fact."""
IMPORTER = "importer"
"""Writes a whole run from an archive, whoever said what."""
READER = "reader"
"""Commands that look; it also makes the consumers of those that are attached."""
ATTACHED: tuple[str, ...] = tuple(f"attached_{number:02}" for number in range(16))
"""Consumers of other people: each has a user, an inbox and one consumer of this name in each log."""
LOOKERS = ("analytics", "traces", "dashboard", READER)
"""Who reads both logs and says nothing."""
USERS: tuple[str, ...] = (*SERVICES, *LOOKERS, PROVISIONER, IMPORTER, *ATTACHED)
"""Every user of a run's server."""

_QUEUES: Mapping[str, QueueName] = {"runner": "rollout", "evaluator": "eval", "cell": "step"}
_BEAT = (*sorted(SINGLETONS), "runner")
"""Who says now and then that it is there; cells do it under their index."""
_READ_CALL = frozenset({"control", "proxy", "runner", "builder", "evaluator", "examiner", *LOOKERS})
_ASK = frozenset({"control", READER, "dashboard"})
"""Who looks after the processes: hears their heartbeats and asks their edges."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects of one user; what is denied is denied although a wider permission would allow it."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    deny: tuple[str, ...] = ()
    """Of what it publishes."""
    answers: bool = False
    """Whether it may answer where a question asks it to."""

    def may_publish(self, subject: str) -> bool:
        """Whether the server takes a message of this user on this subject."""
        return _any(self.publish, subject) and not _any(self.deny, subject)


def permissions(user: str, run: str) -> Permissions:
    """What a user may do in one run, or with `ANY` in all runs of a server. Raises `ValueError` for no such user."""
    if user not in USERS:
        raise ValueError(f"user {user!r}: no such user; one of {', '.join(USERS)}")
    serves = user in SERVICES or user in LOOKERS
    publish = (*_says(user, run), *_pulls(user, run), *_reads(user, run), *_tells(user, run), *_rules(user, run))
    listen = [f"_INBOX.{user}.>", *_hears(user, run)]
    return Permissions(tuple(dict.fromkeys(publish)), tuple(listen), tuple(_never(user, run)), serves)


def authorization(run: str, secret: Callable[[str], str]) -> str:
    """The `authorization` block with every user; `secret` gives a user's password as the block shall hold it."""
    return "authorization {\n  users: [\n" + "".join(_entry(user, run, secret(user)) for user in USERS) + "  ]\n}\n"


def _entry(user: str, run: str, password: str) -> str:
    granted = permissions(user, run)
    publish = f"allow: {_array(granted.publish)}" + (f", deny: {_array(granted.deny)}" if granted.deny else "")
    lines = [
        f"    {{ user: {user}, password: {password}, permissions: {{",
        f"      publish: {{ {publish} }}",
        f"      subscribe: {{ allow: {_array(granted.subscribe)} }}",
        *(["      allow_responses: true"] if granted.answers else []),
        "    } }",
    ]
    return "\n".join(lines) + "\n"


def _array(names: Iterable[str]) -> str:
    return orjson.dumps(list(names)).decode()


def _says(user: str, run: str) -> Iterator[str]:
    """Its own events on its own subjects; the provisioner begins the run in the name of `control`."""
    service = "control" if user == PROVISIONER else user
    kinds = sorted(kind for kind, speakers in SPEAKERS.items() if service in speakers)
    if any(stream_of(kind) == "CALL" for kind in kinds):
        yield subjects.pattern("call", run, "*")
    for kind in kinds:
        for entity in sorted(ENTITIES[kind]):
            yield subjects.pattern("ev", run, service, entity)
            yield subjects.pattern("ev", run, service, entity, ">")


def _pulls(user: str, run: str) -> Iterator[str]:
    """Its queue; the evaluator also parks what the queues gave up."""
    if queue := _QUEUES.get(user):
        stream = _queue(run, queue)
        yield f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{streams.WORKER}"
        yield f"$JS.ACK.{stream}.{streams.WORKER}.>"
    if user == "evaluator":
        yield from _consumers(streams.advisory_stream(run) if run != ANY else ANY)
        for queue in streams.QUEUES:
            yield f"$JS.API.DIRECT.GET.{_queue(run, queue)}"
            yield f"$JS.API.STREAM.MSG.DELETE.{_queue(run, queue)}"


def _reads(user: str, run: str) -> Iterator[str]:
    """The logs: all services fold EV, those that need bodies CALL."""
    if user in ATTACHED:
        for stream in (_log(run, "EV"), _log(run, "CALL")):
            yield f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{user}"
    elif user in SERVICES or user in LOOKERS:
        yield from _consumers(_log(run, "EV"))
        if user in _READ_CALL:
            yield from _consumers(_log(run, "CALL"))
        else:
            yield f"$JS.API.STREAM.INFO.{_log(run, 'CALL')}"


def _consumers(stream: str) -> Iterator[str]:
    yield f"$JS.API.STREAM.INFO.{stream}"
    yield f"$JS.API.DIRECT.GET.{stream}"
    yield f"$JS.API.CONSUMER.CREATE.{stream}.*"
    yield f"$JS.API.CONSUMER.CREATE.{stream}.*.>"
    yield f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*"
    yield f"$JS.API.CONSUMER.DELETE.{stream}.*"


def _tells(user: str, run: str) -> Iterator[str]:
    """What may be lost: heartbeats, and questions to the edges."""
    if user == "cell":
        yield subjects.pattern("hint", run, "heartbeat", "*")
    if user in _BEAT:
        yield subjects.pattern("hint", run, "heartbeat", user)
    if user in _ASK:
        yield subjects.pattern("cmd", run, "*", "status")


def _hears(user: str, run: str) -> Iterator[str]:
    if user in ("scheduler", "runner", *_ASK):
        yield subjects.pattern("hint", run, "heartbeat", "*")
    if user in SERVICES or user in LOOKERS:
        yield subjects.pattern("cmd", run, user, ">")


def _rules(user: str, run: str) -> Iterator[str]:
    if user in (PROVISIONER, IMPORTER):
        yield "$JS.API.>"
    if user == IMPORTER:
        yield subjects.pattern("ev", run, ">")
        yield subjects.pattern("call", run, ">")


def _never(user: str, run: str) -> Iterator[str]:
    if user == "cell":
        yield from (subjects.pattern("hint", run, "heartbeat", name) for name in _BEAT)
    if run == ANY and user not in (PROVISIONER, IMPORTER, *ATTACHED):
        for call in ("CREATE", "DELETE") if user in _QUEUES else ("CREATE", "DELETE", "MSG.NEXT"):
            yield f"$JS.API.CONSUMER.{call}.*.{streams.WORKER}"
        yield f"$JS.API.CONSUMER.CREATE.*.{streams.WORKER}.>"


def _log(run: str, stream: Stream) -> str:
    if run == ANY:
        return ANY
    return streams.ev_stream(run) if stream == "EV" else streams.call_stream(run)


def _queue(run: str, queue: QueueName) -> str:
    return ANY if run == ANY else streams.queue_stream(run, queue)


def _any(filters: Iterable[str], subject: str) -> bool:
    return any(subjects.matches(each, subject) for each in filters)
