"""Which tool call started which sub-agent, from records alone."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.links import Link, links
from gyre.proxy.normalise import Message, ToolCall, dump
from schemas.calls import ModelCallRecorded, SamplingRecord


def record(index: int, thread: str, messages: tuple[Message, ...], reply: Message, **more: Any) -> ModelCallRecorded:
    fields: dict[str, Any] = {
        "execution": "x",
        "call": f"c{index}",
        "index": index,
        "thread": thread,
        "kind": "turn",
        "parent": None,
        "prefix_tokens": 0,
        "prefix_messages": 0,
        "input_ids": b"",
        "output_ids": b"",
        "logprobs": b"",
        "versions": (),
        "finish": "stop",
        "sampling": SamplingRecord(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, seed=1),
        "messages": dump(messages),
        "reply": dump((reply,)),
        "system_digest": "0" * 64,
        "cells": (0,),
        "cached_tokens": 0,
        "queue_seconds": 0.0,
        "engine_seconds": 0.0,
        "total_seconds": 0.0,
        "delivered": True,
    }
    return ModelCallRecorded(**(fields | more))


def delegating(*prompts: str) -> Message:
    calls = (ToolCall(f"t{at}", "agent", json.dumps({"prompt": prompt})) for at, prompt in enumerate(prompts))
    return Message("assistant", "", tuple(calls))


def user(text: str) -> tuple[Message, ...]:
    return (Message("system", "s"), Message("user", text))


DONE = Message("assistant", "done")


def test_a_prompt_is_looked_for_word_for_word_in_what_the_user_says_first() -> None:
    main = record(0, "main", user("task"), delegating("look", "look around"))
    subs = [record(1, "a", user("<reminder>\nlook around"), DONE), record(2, "b", user("look"), DONE)]
    assert links([main, *subs]) == (Link("c0", "t1", "a", "c1"), Link("c0", "t0", "b", "c2"))


def test_equal_prompts_are_given_out_in_the_order_of_arrival_each_once() -> None:
    main = record(0, "main", user("task"), delegating("look", "look"))
    subs = [record(at, "sub-agent-0", user("look"), DONE) for at in (1, 2, 3)]
    assert links([main, *subs]) == (Link("c0", "t0", "sub-agent-0", "c1"), Link("c0", "t1", "sub-agent-0", "c2"))


def test_a_named_sub_agent_that_asks_again_does_not_take_anothers_call() -> None:
    main = record(0, "main", user("task"), delegating("look", "look"))
    subs = [record(1, "a", user("look"), DONE), record(2, "a", user("look"), DONE), record(3, "b", user("look"), DONE)]
    assert [(link.tool_call_id, link.thread) for link in links([main, *subs])] == [("t0", "a"), ("t1", "b")]


def test_a_result_that_names_the_sub_agent_tells_more_than_a_prompt() -> None:
    main = record(0, "main", user("task"), delegating("look", "look"))
    subs = [record(1, "agent-1", user("look"), DONE), record(2, "agent-11", user("look"), DONE)]
    results = (Message("tool", "agentId: agent-11", call_id="t0"), Message("tool", "agentId: agent-1", call_id="t1"))
    after = record(3, "main", results, DONE, parent="c0", prefix_messages=3)
    assert links([main, *subs, after]) == (Link("c0", "t1", "agent-1", "c1"), Link("c0", "t0", "agent-11", "c2"))


def test_a_nested_sub_agent_is_linked_to_its_own_parent() -> None:
    main = record(0, "main", user("task"), delegating("look"))
    again = Message("assistant", "", (ToolCall("u0", "agent", '{"prompt":"look"}'),))
    outer = record(1, "a", user("look"), again)
    inner = record(2, "a/b", user("look"), DONE)
    assert links([main, outer, inner]) == (Link("c0", "t0", "a", "c1"), Link("c1", "u0", "a/b", "c2"))


def test_what_no_call_asked_for_and_what_is_not_an_opening_has_no_link() -> None:
    main = record(0, "main", user("task"), delegating("look"))
    other = record(1, "a", user("something else"), DONE)
    compacted = record(2, "b", (*user("look"), DONE, Message("user", "go on")), DONE)
    lost = record(3, "c", user("look"), DONE, delivered=False)
    assert links([main, other, compacted, lost]) == ()


@given(st.permutations(range(5)))
@settings(max_examples=30, deadline=None)
def test_the_order_in_which_records_are_given_changes_nothing(order: list[int]) -> None:
    prompts = delegating("look", "look", "see", "hear")
    made = [
        record(0, "main", user("task"), prompts),
        record(1, "sub-agent-0", user("look"), DONE),
        record(2, "sub-agent-0", user("look"), DONE),
        record(3, "sub-agent-1", user("see"), DONE),
        record(4, "b", user("hear"), DONE),
    ]
    assert links([made[at] for at in order]) == links(made)
    assert [link.tool_call_id for link in links(made)] == ["t0", "t1", "t2", "t3"]
