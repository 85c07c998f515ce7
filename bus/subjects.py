"""Every subject of the bus is built, parsed and matched here and nowhere else.

ev.<run>.<service>.<entity>...   control-plane commits          (stream EV_<run>)
call.<run>.<execution>           request records                (stream CALL_<run>)
q.<run>.<queue>.<id>...          entries sourced from EV        (streams QROLLOUT_, QEVAL_, QSTEP_<run>)
hint.<run>.<word>...             core NATS: what may be lost
cmd.<run>.<service>.<word>       core NATS: a question to every process of a service
"""

import re
from dataclasses import dataclass
from functools import lru_cache

TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
ANY = "*"
"""One token of a filter, whatever it is."""


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed subject: `entity` is what follows the service (ev), the queue (q), or the run (call, hint)."""

    kind: str
    run: str
    service: str
    entity: tuple[str, ...]


def ev(run: str, service: str, *entity: str | int) -> str:
    """Subject of a control-plane commit, e.g. `ev("r", "cell", "step", 3, "0")`."""
    return _join("ev", run, service, *entity)


def call(run: str, execution: str) -> str:
    """Subject of an execution's request records."""
    return _join("call", run, execution)


def hint(run: str, *words: str | int) -> str:
    """Subject of what may be lost: heartbeats, live tokens, cancel hints."""
    return _join("hint", run, *words)


def command(run: str, service: str, word: str) -> str:
    """Subject of a question that every process of a service answers."""
    return _join("cmd", run, service, word)


def heartbeats(run: str) -> str:
    """Filter of the cells' heartbeats; a cell's own is `hint(run, "heartbeat", cell)`."""
    return f"hint.{_token(run)}.heartbeat.*"


def micro_step(run: str, step: int, micro: str | int) -> str:
    """Filter shared by a micro-step's enqueue, reissues, claims and completions, whoever says them."""
    return f"ev.{_token(run)}.*.step.{_token(step)}.{_token(micro)}"


def execution(run: str, service: str, execution_id: str) -> str:
    """Filter of all that one service says about an execution on subjects below it (launched, terminated, ...)."""
    return f"{ev(run, service, 'execution', execution_id)}.*"


def below(run: str, service: str, *entity: str | int) -> str:
    """Filter of all that one service says on subjects right below an entity, e.g. the micro-steps of a step."""
    return f"{ev(run, service, *entity)}.*"


def executions(run: str) -> str:
    """Filter of what scheduler and runner say about executions: dispatched, granted, cancel, launched, terminated."""
    return f"ev.{_token(run)}.*.execution.*.*"


def producer(run: str, service: str) -> str:
    """Filter of all that one service says: a singleton's commits are conditional on its own last sequence."""
    return f"{ev(run, service)}.>"


def everything(run: str) -> str:
    """Filter of the whole of EV."""
    return f"ev.{_token(run)}.>"


def calls(run: str) -> str:
    """Filter of the whole of CALL."""
    return f"call.{_token(run)}.>"


def pattern(kind: str, run: str, *tokens: str) -> str:
    """Filter of any kind of subject, for permissions; a token, the run too, may be `*`, and the last one `>`."""
    return ".".join(token if token in (ANY, ">") else _token(token) for token in (kind, run, *tokens))


def parse(subject: str) -> Place:
    """Take a subject apart; `ValueError` for what this module could not have built."""
    kind, *rest = subject.split(".")
    wanted = {"ev": 3, "q": 3, "call": 2, "hint": 2}.get(kind)
    if wanted is None or len(rest) < wanted or not all(TOKEN.fullmatch(token) for token in rest):
        raise ValueError(
            f"subject {subject[:200]!r} must be ev.<run>.<service>.<entity>... or call.<run>.<execution>, q..., hint..."
        )
    if kind in ("ev", "q"):
        return Place(kind, rest[0], rest[1], tuple(rest[2:]))
    return Place(kind, rest[0], "", tuple(rest[1:]))


def matches(filter: str, subject: str) -> bool:  # noqa: A002 (the word of the Log protocol)
    """Whether a subject lies under a filter of `*` (one token) and a last `>` (one or more tokens)."""
    return _pattern(filter).fullmatch(subject) is not None


def wanted(filters: tuple[str, ...]) -> tuple[str, ...]:
    """The filters of a reading; none where one of them is empty, which means all subjects."""
    return filters if all(filters) else ()


def under(filters: tuple[str, ...], subject: str) -> bool:
    """Whether a subject lies under one of the `wanted` filters, or there are none."""
    return not filters or _any(filters).fullmatch(subject) is not None


@lru_cache(maxsize=4096)
def _pattern(filter: str) -> re.Pattern[str]:  # noqa: A002
    return re.compile(_expression(filter))


@lru_cache(maxsize=256)
def _any(filters: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_expression, filters)))


def _expression(filter: str) -> str:  # noqa: A002
    tokens = {"*": r"[^.]+", ">": r".+"}
    return r"\.".join(tokens.get(token, re.escape(token)) for token in filter.split("."))


def _join(*tokens: str | int) -> str:
    return ".".join(_token(token) for token in tokens)


@lru_cache(maxsize=4096)
def _token(value: str | int) -> str:
    token = str(value)
    if TOKEN.fullmatch(token) is None:
        raise ValueError(f"subject token {token[:200]!r} must be 1 to 128 of A-Z a-z 0-9 _ -")
    return token
