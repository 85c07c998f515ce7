"""Whatever clients do to their histories: what is recorded, marked and trained is what the engine did."""

import random
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.session import Plan
from gyre.proxy.template import Template
from schemas.base import ints
from schemas.training import Trajectory
from tests.proxy.book import LIMITS, Book
from tests.proxy.book import asked as requested
from tests.proxy.hostile import (
    ANSWERS,
    COMPACTION,
    HELPER,
    MOVES,
    READ,
    SYSTEM,
    TASK,
    TOOLS,
    WRITE,
    History,
    calls_of,
    respaced,
    went_on,
)
from tests.proxy.templates import CHATML, COUNTING, MERGING, nano, with_template
from tests.proxy.thinking_template import THINKING

NANO = nano()
SEEDS = st.integers(0, 2**32)
TEMPLATES = {"nano": None, "chatml": CHATML, "merging": MERGING, "counting": COUNTING, "thinking": THINKING}


@pytest.fixture(scope="module", params=TEMPLATES)
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Template:
    text = TEMPLATES[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    return with_template(folder / "m", text) if text else NANO


def harassed(template: Template, chance: random.Random, steps: int) -> tuple[Book, list[History]]:
    """A book after so many requests, several of them in flight at a time, and the histories that there were."""
    book = Book(template)
    histories: list[History] = [[SYSTEM, TASK]]
    flying: list[tuple[Plan, History]] = []
    for _ in range(steps):
        history = deepcopy(histories[-1] if chance.random() < 0.6 else chance.choice(histories))
        while chance.random() < 0.3:
            history = chance.choice(MOVES)(history, chance)
        more = {"tools": TOOLS} if chance.random() < 0.1 else {}
        if plan := book.plan(history, **more):
            flying.append((plan, history))
        while flying and (chance.random() < 0.7 or len(flying) > 3):
            histories.append(landed(book, flying, chance))
    while flying:
        histories.append(landed(book, flying, chance))
    return book, histories


def landed(book: Book, flying: list[tuple[Plan, History]], chance: random.Random) -> History:
    """Any of the calls in flight is answered; what its client goes on with."""
    plan, history = flying.pop(chance.randrange(len(flying)))
    stopped, delivered = chance.random() < 0.85, chance.random() < 0.9
    reply = book.answer(plan, chance.choice(ANSWERS), stopped=stopped, delivered=delivered)
    return went_on(history, reply, chance)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_every_context_is_what_the_engine_was_given_and_every_mark_what_it_sampled(
    template: Template, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        book, histories = harassed(template, chance, 10)
        book.check_contexts()
        book.check_training(chance.randint(1, 5), seed)
        book.check_training(100, seed)
        book.check_replay(chance.sample(histories, min(3, len(histories))))


def threads(chance: random.Random) -> dict[str, tuple[History, list[str]]]:
    """Conversations that run side by side: how each begins, and what the policy answers in turn."""
    main = [SYSTEM, TASK]
    found: dict[str, tuple[History, list[str]]] = {}
    for number in range(chance.randint(2, 4)):
        question = {"role": "user", "content": f"part {number}"}
        begin = chance.choice([[*main, question], [HELPER, question], [HELPER, TASK, question], [*main, COMPACTION]])
        turns = chance.randint(1, 3) if begin[-1] is question else 1
        found[f"t{number}"] = begin, [f"{chance.choice(['done', WRITE, READ])} t{number}" for _ in range(turns)]
    return found


def in_order(template: Template, asked: dict[str, tuple[History, list[str]]], chance: random.Random) -> Book:
    """The first call alone, then all conversations at once, requests and answers falling as chance has it."""
    book = Book(template)
    flying: dict[str, Plan] = {}
    histories = {name: begin for name, (begin, _) in asked.items()}
    left = {name: list(answers) for name, (_, answers) in asked.items()}
    first = book.plan([SYSTEM, TASK])
    assert first is not None
    book.answer(first, "begun")
    while flying or any(left.values()):
        name = chance.choice([name for name in left if left[name] or name in flying])
        if plan := flying.pop(name, None):
            reply = book.answer(plan, left[name].pop(0))
            histories[name] = went_on(histories[name], reply, random.Random(0))
        elif plan := book.plan(histories[name]):
            flying[name] = plan
    return book


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_calls_side_by_side_may_come_in_any_order_and_the_same_is_admitted(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        asked = threads(chance)
        one, other = (in_order(NANO, asked, chance) for _ in range(2))
        j_max = chance.randint(1, 5)
        assert contents(one.trained(j_max, seed)) == contents(other.trained(j_max, seed))
        one.check_contexts()


def contents(drawn: Sequence[Trajectory]) -> list[tuple[str, list[int], bytes, bytes]]:
    return [(each.role, ints(each.ids), each.target, each.logprobs) for each in drawn]


PLAIN = (
    "done",
    "he",
    "",
    '<tool_call>{"name":"write","arguments":{"path":"a.txt","content":"up"}}</tool_call>',
    'so <tool_call>{"name":"read","arguments":{}}</tool_call>',
)
"""Answers that the template writes just as they were sampled."""


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_each_call_is_asked_what_the_template_makes_of_its_whole_history(seed: int) -> None:
    chance = random.Random(seed)
    moves = [move for move in MOVES if move is not respaced]
    for _ in range(5):
        book = Book(NANO)
        histories: list[History] = [[SYSTEM, TASK]]
        for _ in range(8):
            history = deepcopy(chance.choice(histories[-2:]))
            while chance.random() < 0.4:
                history = chance.choice(moves)(history, chance)
            request = requested(history)
            if any(message.role == "assistant" and message.content == " " for message in request.messages):
                continue  # stands for an empty answer, and is asked as that
            plan, whole = book.plan(history), NANO.whole(request.messages, request.tools).ids
            if plan is None:  # what is put twice again and again is longer than the context
                assert len(whole) + LIMITS.max_tokens > LIMITS.context_tokens
                continue
            assert list(plan.full_ids) == whole
            reply = book.answer(plan, chance.choice(PLAIN), stopped=chance.random() < 0.8)
            results = [{"role": "tool", "tool_call_id": each["id"], "content": "ok"} for each in calls_of([reply])]
            histories.append([*history, reply, *(results or [TASK])])
