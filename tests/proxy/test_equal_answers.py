"""Conversations with equal prompts and equal answers: which call came first decides nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.core.admission import draw
from gyre.core.leaves import MAIN, summaries
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.port import Adapter, Hints, named
from gyre.proxy.adapters.reference import Reference
from gyre.proxy.exchange import Asked, Wire
from gyre.proxy.normalise import Message
from gyre.proxy.session import Drawn, Limits, Plan, Session
from schemas.base import floats, ints
from schemas.calls import DeliveryCorrected, VersionSpan
from schemas.training import Trajectory
from tests.proxy.templates import nano

TEMPLATE = nano()
OPENING = (Message("system", "You help in a folder."), Message("user", "look"))
MORE = Message("user", "more")
SEEDS = st.integers(0, 2**32)


class Headed:
    """A harness whose sub-agents name themselves in a header."""

    name = "headed"

    def recognises(self, asked: Asked) -> bool:
        return True

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        own = asked.wire.headers.get("x-agent", "")
        return Hints("turn", named(own, "", memory) if own else MAIN)


@dataclass(frozen=True)
class Talk:
    """One conversation: what the policy says in turn, and what the client adds behind each answer."""

    name: str
    answers: tuple[str, ...]
    adds: tuple[str, ...]


def session(adapter: Adapter) -> Session:
    return Session("x", 7, TEMPLATE, Limits(1.0, 64, 1 << 20), adapter)


def asked(history: Sequence[Message], name: str) -> Asked:
    return Asked(tuple(history), (), None, wire=Wire("chat", {"x-agent": name} if name else {}))


def answered(live: Session, plan: Plan, text: str, logprob: float, *, delivered: bool = True) -> Message:
    ids = (*TEMPLATE.model.encode(text), TEMPLATE.model.stop_token_ids[0])
    spans = (VersionSpan(version=1, tokens=len(ids)),)
    given_ = Drawn(ids, (logprob,) * len(ids), spans, "stop", (0,), 0, 0.0, 0.0)
    live.add(live.record(plan, given_, total_seconds=0.0, delivered=delivered))
    return live.reply(plan.call)[0]


def talks(chance: random.Random) -> list[Talk]:
    """Conversations that begin alike and are mostly answered alike."""
    found = []
    for number in range(chance.randint(2, 4)):
        turns = chance.randint(1, 3)
        answers = tuple(chance.choice(["done", "done", "so"]) for _ in range(turns))
        adds = tuple(chance.choice(["on", f"on {number}"]) for _ in range(turns))
        found.append(Talk(f"t{number}", answers, adds))
    return found


def in_order(asking: Sequence[Talk], adapter: Adapter, chance: random.Random, *, named_: bool) -> Session:
    """All conversations at once, requests and answers falling as chance has it."""
    live = session(adapter)
    answered(live, live.plan(asked([Message("system", "You work."), OPENING[1]], "")), "begun", -2.0)
    histories = {talk.name: list(OPENING) for talk in asking}
    turns = dict.fromkeys(histories, 0)
    flying: dict[str, Plan] = {}
    while open_ := [talk for talk in asking if talk.name in flying or turns[talk.name] < len(talk.answers)]:
        talk = chance.choice(open_)
        plan = flying.pop(talk.name, None)
        if plan is None:
            flying[talk.name] = live.plan(asked(histories[talk.name], talk.name if named_ else ""))
            continue
        turn = turns[talk.name]
        logprob = -0.25 * (int(talk.name[1:]) + 1) if named_ else -0.25
        reply = answered(live, plan, talk.answers[turn], logprob)
        histories[talk.name] += [Message("assistant", reply.content), Message("user", talk.adds[turn])]
        turns[talk.name] += 1
    return live


def contents(drawn: Sequence[Trajectory]) -> list[tuple[str, list[int], bytes, list[float]]]:
    return [(each.role, ints(each.ids), each.target, floats(each.logprobs)) for each in drawn]


@pytest.mark.parametrize("named_", [True, False])
@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_equal_answers_are_told_apart_whatever_the_order_of_arrival(named_: bool, seed: int) -> None:
    chance = random.Random(seed)
    adapter: Adapter = Headed() if named_ else Reference()
    for _ in range(3):
        asking = talks(chance)
        one, other = (in_order(asking, adapter, chance, named_=named_) for _ in range(2))
        for j_max in (1, 2, 5, 20):
            found = [draw(live.tree.nodes, summaries(live.tree), j_max=j_max, seed=seed) for live in (one, other)]
            assert contents(found[0]) == contents(found[1])


def test_a_thread_goes_on_from_its_own_answer_and_not_from_the_latest_equal_one() -> None:
    live = session(Headed())
    calls = []
    for name in ("a", "b"):
        plan = live.plan(asked(OPENING, name))
        answered(live, plan, "done", -0.5)
        calls.append(plan.call)
    history = (*OPENING, Message("assistant", "done"), MORE)
    assert [live.plan(asked(history, name)).parent for name in ("a", "b")] == calls


def test_conversations_that_nothing_tells_apart_each_go_on_from_an_answer_of_their_own() -> None:
    live = session(Reference())
    for _ in range(2):
        answered(live, live.plan(asked(OPENING, "")), "done", -0.5)
    said = Message("assistant", "done")
    one, other, again = (
        live.plan(asked((*OPENING, said, Message("user", add)), "")).parent for add in ("one", "two", "one")
    )
    assert one != other
    assert again == one


def test_a_history_goes_on_along_the_longest_known_way() -> None:
    live = session(Reference())
    for _ in range(2):
        answered(live, live.plan(asked(OPENING, "")), "done", -0.5)
    history = [*OPENING, Message("assistant", "done"), MORE]
    first = live.plan(asked(history, ""))
    history.append(answered(live, first, "so", -0.5))
    answered(live, live.plan(asked(OPENING, "")), "done", -0.5)
    assert live.plan(asked([*history, MORE], "")).parent == first.call


def test_an_answer_that_nobody_waited_for_may_be_given_to_whoever_asks_again_and_else_is_not_gone_on_from() -> None:
    live = session(Reference())
    first, second = live.plan(asked(OPENING, "")), live.plan(asked(OPENING, ""))
    answered(live, second, "done", -0.5)
    answered(live, first, "done", -0.5, delivered=False)
    assert set(live.finished(asked(OPENING, ""))) == {first.call, second.call}
    assert live.plan(asked((*OPENING, Message("assistant", "done"), MORE), "")).parent == second.call


def test_of_equal_answers_the_one_that_turned_out_to_be_received_is_gone_on_from() -> None:
    live = session(Reference())
    first, second = live.plan(asked(OPENING, "")), live.plan(asked(OPENING, ""))
    answered(live, first, "done", -0.5, delivered=False)
    answered(live, second, "done", -0.5)
    on = asked((*OPENING, Message("assistant", "done"), MORE), "")
    assert live.plan(on).parent == second.call
    for call, delivered in ((second.call, False), (first.call, True)):
        live.correct(DeliveryCorrected(execution="x", call=call, delivered=delivered))
    assert live.plan(on).parent == first.call
