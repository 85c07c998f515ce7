"""A session whose engine keeps a book: what it was given, what it sampled, behind what."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any

from gyre.core import tree as trees
from gyre.core.admission import draw
from gyre.core.leaves import summaries
from gyre.proxy import chat
from gyre.proxy.adapters.reference import Reference
from gyre.proxy.errors import CallError
from gyre.proxy.exchange import Asked
from gyre.proxy.session import Drawn, Limits, Plan, Session
from gyre.proxy.template import Template
from schemas.base import Int32s, floats, pack_floats, pack_ints
from schemas.calls import Finish, ModelCallRecorded, VersionSpan
from schemas.training import Trajectory

LIMITS = Limits(temperature=1.0, max_tokens=160, context_tokens=1200)
Json = dict[str, Any]
Key = tuple[bytes, bytes]
"""A token, behind the digest of all that stood before it."""


def asked(history: Sequence[Json], **more: Any) -> Asked:
    """The request as a chat client sends it; what no UTF-8 can say travels escaped. Raises CallError."""
    return chat.parse(json.dumps({"model": "m", "messages": history, **more}).encode(), {}).asked


@lru_cache(maxsize=256)
def keys(ids: Int32s) -> tuple[Key, ...]:
    """The key of each token of a path."""
    before, found = sha256(), list[Key]()
    for place in range(0, len(ids), 4):
        token = ids[place : place + 4]
        found.append((before.digest(), token))
        before.update(token)
    return tuple(found)


@dataclass
class Book:
    """One execution."""

    template: Template
    live: Session = field(init=False)
    records: list[ModelCallRecorded] = field(default_factory=list)
    given: dict[str, Int32s] = field(default_factory=dict)
    """By call: the exact input that the engine was given."""
    sampled: defaultdict[Key, Counter[float]] = field(default_factory=lambda: defaultdict(Counter))
    """Log-probabilities of what was sampled and reached a client."""
    marks: set[Key] = field(default_factory=set)
    """All that was sampled."""

    def __post_init__(self) -> None:
        """An empty session."""
        self.live = self.empty()

    def empty(self) -> Session:
        return Session("x", 7, self.template, LIMITS, Reference())

    def plan(self, history: Sequence[Json], **more: Any) -> Plan | None:
        """None where the proxy refuses the request in its protocol's own words."""
        try:
            return self.live.plan(asked(history, **more))
        except CallError:
            return None

    def answer(self, plan: Plan, text: str, *, stopped: bool = True, delivered: bool = True) -> Json:
        """The engine says this; returns the message that the client gets."""
        stop = self.template.model.stop_token_ids[:1] if stopped else ()
        ids = [*self.template.model.encode(text), *stop]
        assert len(ids) <= plan.sampling.max_tokens
        self.given[plan.call] = pack_ints(plan.full_ids)
        record = self.live.record(plan, _drawn(text, ids, stopped), total_seconds=0.0, delivered=delivered)
        self.live.add(record)
        self.records.append(record)
        own = zip(keys(plan.context + record.output_ids)[plan.tokens :], floats(record.logprobs), strict=True)
        for key, logprob in own:
            self.marks.add(key)
            self.sampled[key][logprob] += delivered
        return self.live.reply(plan.call)[0].wire()

    def trained(self, j_max: int, seed: int) -> tuple[Trajectory, ...]:
        """What admission makes of it."""
        return draw(self.live.tree.nodes, summaries(self.live.tree), j_max=j_max, seed=seed)

    def check_contexts(self) -> None:
        """Every record's context is what the engine was given; every mark stands where the engine sampled it."""
        tree = self.live.tree
        assert set(tree.nodes) == set(self.given)
        for call, given in self.given.items():
            path = trees.path_ids(tree, call)
            assert path[: len(given)] == given == trees.context_ids(tree, call)
            marks = trees.sampled(tree, call)
            assert all(key in self.marks for key, mark in zip(keys(path), marks, strict=True) if mark)
            assert set(marks[len(given) // 4 :]) <= {1}

    def check_training(self, j_max: int, seed: int) -> None:
        """Every target was sampled right there and delivered, none more often than that, with its log-probability."""
        drawn = self.trained(j_max, seed)
        assert len(drawn) <= j_max
        found: defaultdict[Key, Counter[float]] = defaultdict(Counter)
        for each in drawn:
            for key, flag, logprob in zip(keys(each.ids), each.target, floats(each.logprobs), strict=True):
                if flag:
                    found[key][logprob] += 1
        for key, logprobs in found.items():
            assert logprobs <= self.sampled[key]

    def check_replay(self, histories: Sequence[Sequence[Json]]) -> None:
        """The records alone make the same tree, and a session that goes on alike."""
        stored = [ModelCallRecorded.model_validate_json(record.model_dump_json()) for record in self.records]
        assert trees.to_bytes(trees.fold("x", stored)) == trees.to_bytes(self.live.tree)
        again = self.empty()
        for record in stored:
            again.add(record)
        assert trees.to_bytes(again.tree) == trees.to_bytes(self.live.tree)
        for history in histories:
            assert outcome(again, history) == outcome(self.live, history)


def outcome(session: Session, history: Sequence[Json]) -> Plan | str:
    """The plan, or the refusal."""
    try:
        return session.plan(asked(history))
    except CallError as error:
        return str(error)


def _drawn(text: str, ids: Sequence[int], stopped: bool) -> Drawn:
    """Equal texts have equal log-probabilities: they cannot be told apart by those."""
    known = [-int(sha256(f"{text}/{place}".encode()).hexdigest()[:4], 16) / 1024 for place in range(len(ids))]
    logprobs = tuple(floats(pack_floats(known)))
    spans = (VersionSpan(version=3, tokens=len(ids)),) if ids else ()
    finish: Finish = "stop" if stopped else "length"
    return Drawn(tuple(ids), logprobs, spans, finish, (0,), 0, 0.0, 0.0)
