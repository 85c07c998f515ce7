"""Bodies of very many tiny things are refused before anything is made of them, and what is remembered has a bound."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from gyre.proxy.adapters.generic import Generic
from gyre.proxy.errors import BadRequest, PromptTooLong
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message
from gyre.proxy.protocols import PROTOCOLS
from gyre.proxy.recall import Recall
from gyre.proxy.session import Limits, Session
from gyre.proxy.template import Template
from tests.proxy.rig import Cell, Rig
from tests.proxy.templates import drawn

MOST = 4096
HELLO = {"role": "user", "content": "hello"}
ITEMS = {"messages": "messages", "chat/completions": "messages", "responses": "input"}


def parse(api: str, body: Mapping[str, Any]) -> Asked:
    return PROTOCOLS[api].parse(json.dumps(body).encode(), {}, MOST).asked


@pytest.mark.parametrize("api", ITEMS)
def test_more_messages_than_tokens_are_a_prompt_that_is_too_long(api: str) -> None:
    many = [{"role": "user", "content": ""}] * (MOST + 1)
    with pytest.raises(PromptTooLong, match=r"prompt is too long: 4097 tokens > 4096 maximum"):
        parse(api, {ITEMS[api]: many})


@pytest.mark.parametrize("api", ITEMS)
@pytest.mark.parametrize("part", [{}, "", {"type": "text", "text": ""}])
def test_so_is_a_message_of_very_many_parts(api: str, part: Any) -> None:
    with pytest.raises(PromptTooLong):
        parse(api, {ITEMS[api]: [HELLO, {"role": "user", "content": [part] * (5 * MOST)}]})


@pytest.mark.parametrize("api", ITEMS)
def test_so_are_more_tools_than_tokens(api: str) -> None:
    with pytest.raises(PromptTooLong):
        parse(api, {ITEMS[api]: [HELLO], "tools": [{}] * (MOST + 1)})


@pytest.mark.parametrize("api", ITEMS)
def test_a_full_context_of_short_messages_is_read(api: str) -> None:
    turns = [HELLO, {"role": "assistant", "content": [{"type": "text", "text": "so"}]}] * (MOST // 8)
    for _ in range(2):
        assert len(parse(api, {ITEMS[api]: turns}).messages) == len(turns)


def test_a_long_conversation_may_hold_more_parts_than_one_request_may_bring() -> None:
    """Only what is new is counted: the rest was let in before."""
    content = [{"type": "text", "text": "x"}] * (MOST // 2)
    turns: list[Any] = [{"role": "user", "content": f"{number}"} for number in range(64)]
    for _ in range(4):
        turns.append({"role": "user", "content": content})
        turns += [{"role": "user", "content": ""}] * 63
        assert len(parse("messages", {"messages": turns}).messages) == len(turns)


def test_very_many_stop_texts_are_refused() -> None:
    with pytest.raises(BadRequest, match="stop texts: 65 are too many; give at most 64"):
        parse("chat/completions", {"messages": [HELLO], "stop": ["x"] * 65})


def test_messages_that_cannot_fit_are_refused_unrendered(template: Template) -> None:
    live = Session("x", 7, template, Limits(1.0, 64, 1 << 16), Generic())
    began = time.process_time()
    with pytest.raises(PromptTooLong, match=r"prompt is too long: \d+ tokens > 65536 maximum"):
        live.plan(Asked((Message("user", ""),) * (1 << 15), (), None))
    assert time.process_time() - began < 1.0
    assert template.least > 2


def test_no_message_has_fewer_tokens_than_the_least(template: Template) -> None:
    start = (Message("system", "s"), Message("user", "u"))
    before = len(template.whole(start, ()).ids)
    for role in ("user", "assistant", "tool", "system"):
        for count in (1, 2, 5):
            assert len(template.whole((*start, *(Message(role),) * count), ()).ids) >= before + count * template.least


async def test_a_crowd_is_refused_in_the_protocols_words_and_the_next_request_served(rig: Rig) -> None:
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        status, body = await client.post(token, [{"role": "user", "content": ""}] * 20_000)
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert (await client.reply(token, [HELLO]))["content"] == "done"
    assert len(await rig.records()) == 1


def test_what_a_reader_remembers_is_bounded_by_bytes() -> None:
    read: list[object] = []

    def note(item: object, index: int) -> object:
        read.append(item)
        return item

    recall = Recall(note, kept_bytes=20_000)
    lists = [[f"{name}{number}" + "x" * 800 for number in range(5)] for name in "abc"]
    for items in lists:
        recall(items)
    assert len(read) == 15
    recall(lists[2])
    recall(lists[1])
    assert len(read) == 15
    recall(lists[0])
    assert len(read) == 20
    recall([*lists[1], "y" * 30_000])
    recall(lists[1])
    assert len(read) == 26


def test_many_small_lists_are_bounded_too() -> None:
    recall = Recall(lambda item, _: item, kept_bytes=1 << 16)
    for number in range(1000):
        recall([f"{number}", "", "", ""])
    assert len(recall._lists) < 40
    assert recall._held <= 1 << 16


def test_very_many_messages_that_fit_are_rendered_in_one_piece_and_gone_on_from_behind_their_answer(
    template: Template,
) -> None:
    live = Session("x", 1, template, Limits(1.0, 64, 1 << 20), Generic())
    many = (Message("user", "up"),) * 5000
    began = time.process_time()
    plan = live.plan(Asked(many, (), None))
    assert time.process_time() - began < 5.0
    assert list(plan.full_ids) == template.whole(many, ()).ids
    assert set(plan.message_ends) == {-1}
    live.add(live.record(plan, drawn(template, plan, "done"), total_seconds=0.0, delivered=True))
    more = (*many, Message("assistant", "done"), Message("user", "more"))
    assert live.plan(Asked(more, (), None)).parent == plan.call
