"""What other proxies got wrong with histories and role changes, one test each."""

import asyncio
from pathlib import Path
from typing import Any

from gyre.core import tree as trees
from gyre.core.admission import draw
from gyre.core.leaves import summaries
from gyre.engines.port import Generation
from gyre.proxy.adapters.reference import Reference
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.session import Drawn, Limits, Plan, Session
from gyre.proxy.template import Template
from schemas.base import ints
from schemas.calls import ModelCallRetried, VersionSpan
from schemas.roles import CellLost, RoleTransitionCompleted, RoleTransitionRequested
from services.proxy.draft import Draft
from tests.proxy import rig as rigs
from tests.proxy.rig import MODEL, Cell, Rig
from tests.proxy.templates import drawn, nano, with_template
from tests.proxy.thinking_template import THINKING

SYSTEM, HELPER = Message("system", "You work in a folder."), Message("system", "You help in a folder.")
TASK, OK = Message("user", "write up to a.txt"), "ok"
WRITE = '<tool_call>{"name":"write","arguments":{"path":"a.txt","content":"up"}}</tool_call>'
NANO = nano()


def session(template: Template = NANO) -> Session:
    return Session("x1", 7, template, Limits(1.0, 64, 1 << 20), Reference())


def say(live: Session, messages: list[Message], answer: str | tuple[int, ...]) -> tuple[Plan, Message]:
    """Ask, answer with this text or these very tokens; returns the plan and the message that went out."""
    plan = live.plan(Asked(tuple(messages), (), None))
    given = drawn(NANO, plan, answer) if isinstance(answer, str) else _drawn(answer)
    live.add(live.record(plan, given, total_seconds=0.0, delivered=True))
    return plan, live.reply(plan.call)[0]


def _drawn(ids: tuple[int, ...]) -> Drawn:
    spans = (VersionSpan(version=3, tokens=len(ids)),)
    return Drawn(ids, (-0.5,) * len(ids), spans, "stop", (0,), 0, 0.0, 0.0)


def results(reply: Message) -> list[Message]:
    return [Message("tool", OK, call_id=call.id) for call in reply.calls]


def targets(live: Session, call: str) -> int:
    return trees.sampled(live.tree, call).count(1)


def test_he_and_llo_never_become_hello() -> None:
    live = session()
    split = (*MODEL.encode("he"), *MODEL.encode("llo"), MODEL.stop_token_ids[0])
    assert split[:-1] != tuple(MODEL.encode("hello"))
    first, reply = say(live, [SYSTEM, TASK], split)
    assert reply.content == "hello"
    second, _ = say(live, [SYSTEM, TASK, Message("assistant", "hello"), Message("user", "on")], "done")
    assert second.full_ids[: len(first.full_ids) + len(split)] == (*first.full_ids, *split)


def test_a_template_that_drops_thoughts_gets_a_branch_at_the_next_question_and_none_within_a_turn(
    tmp_path: Path,
) -> None:
    live = session(with_template(tmp_path / "m", THINKING))
    thought = f"<think>\nup it is\n</think>\n\n{WRITE}"
    first, reply = say(live, [SYSTEM, TASK], thought)
    history = [SYSTEM, TASK, reply, *results(reply)]
    second, done = say(live, history, "<think>\nso it is\n</think>\n\ndone")
    assert MODEL.decode(second.full_ids).count("up it is") == 1
    assert second.full_ids[: len(first.full_ids)] == first.full_ids
    assert targets(live, second.call) == sum(
        len(live.tree.nodes[each.call].output_ids) // 4 for each in (first, second)
    )
    third, _ = say(live, [*history, done, Message("user", "more")], "<think>\nwell\n</think>\n\nmore")
    text = MODEL.decode(third.full_ids)
    assert "up it is" not in text
    assert "so it is" not in text
    assert text.count("done") == 1
    assert targets(live, third.call) == len(live.tree.nodes[third.call].output_ids) // 4
    assert [leaf.leaf for leaf in summaries(live.tree)] == [second.call, third.call]


def test_a_tool_renamed_under_the_same_id_is_no_match() -> None:
    live = session()
    _, reply = say(live, [SYSTEM, TASK], WRITE)
    same = Message("assistant", "", (ToolCall(reply.calls[0].id, "write", "{}"),))
    renamed = Message("assistant", "", (ToolCall(reply.calls[0].id, "invalid", reply.calls[0].arguments),))
    kept, _ = say(live, [SYSTEM, TASK, same, *results(reply)], "done")
    other, _ = say(live, [SYSTEM, TASK, renamed, *results(reply)], "done")
    assert targets(live, kept.call) > targets(live, other.call) == len(live.tree.nodes[other.call].output_ids) // 4
    assert '"invalid"' in MODEL.decode(other.full_ids)


def test_a_summary_asked_for_after_179_turns_is_a_branch_and_no_error() -> None:
    live, history, path = session(), [SYSTEM, TASK], [""]
    for _ in range(179):
        plan, reply = say(live, history, WRITE)
        history += [reply, *results(reply)]
        path.append(plan.call)
    asking = [*history[:-2], Message("user", "[compaction] The context is nearly full.")]
    summary, text = say(live, asking, "up was written")
    after, _ = say(live, [SYSTEM, Message("user", f"write up to a.txt\n\n{text.content}")], "done")
    assert (summary.parent, live.tree.rejected) == (path[-1], ())
    assert [(leaf.leaf, leaf.role) for leaf in summaries(live.tree)] == [
        (path[-1], "main"),
        (summary.call, "main-summary"),
        (after.call, "main"),
    ]
    per_turn = len(live.tree.nodes[path[1]].output_ids) // 4
    assert targets(live, path[-1]) == 179 * per_turn
    assert targets(live, summary.call) == 178 * per_turn + len(live.tree.nodes[summary.call].output_ids) // 4


def test_two_sub_agents_that_take_turns_under_one_key_are_exactly_two_trajectories() -> None:
    live = session()
    histories = [[HELPER, Message("user", question)] for question in ("look at a", "look at b")]
    for _ in range(4):
        for history in histories:
            _, reply = say(live, history, WRITE)
            history += [reply, *results(reply)]
    found = summaries(live.tree)
    assert [leaf.role for leaf in found] == ["sub-agent", "sub-agent"]
    trained = draw(live.tree.nodes, found, j_max=5, seed=0)
    per_turn = len(live.tree.nodes[found[0].leaf].output_ids) // 4
    assert [each.targets for each in trained] == [4 * per_turn] * 2
    texts = sorted(MODEL.decode(ints(each.ids)) for each in trained)
    assert ["look at a" in text for text in texts] == [True, False]
    assert ["look at b" in text for text in texts] == [False, True]


async def test_a_request_aborted_by_a_role_change_and_retried_leaves_one_node(rig: Rig) -> None:
    one = await rig.register(0, Cell(["up up up up", " later"]))
    one.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [rigs.SYSTEM, rigs.TASK]))
        await one.spoke.wait()
        await rig.say("scheduler", ("cell", "0"), _to(0, "train"))
        await one.engine.abort_all()
        await rig.until(ModelCallRetried)
        one.open.set()
        await rig.say("cell", ("cell", "0"), _back(0))
        reply = await asking
    tree, (record,) = await rig.tree(), await rig.records()
    kept = MODEL.encode("up up up up")[:2]
    assert reply["content"] == MODEL.decode(kept) + " later"
    assert list(tree.nodes) == [record.call]
    assert ints(record.output_ids) == [*kept, *MODEL.encode(" later"), MODEL.stop_token_ids[0]]
    (trained,) = draw(tree.nodes, summaries(tree), j_max=5, seed=0)
    assert trained.targets == len(ints(record.output_ids))


async def test_tokens_sampled_between_new_weights_and_a_late_abort_are_recorded_under_the_new_version(rig: Rig) -> None:
    one = await rig.register(0, Cell(["up up up up up"], version=4))
    one.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [rigs.SYSTEM, rigs.TASK]))
        await one.spoke.wait()
        await one.engine.load({}, 5)
        one.open.set()
        await asking
    (record,) = await rig.records()
    tokens = len(ints(record.output_ids))
    assert [(span.version, span.tokens) for span in record.versions] == [(4, 2), (5, tokens - 2)]


async def test_what_a_lost_cell_still_says_later_is_in_no_record(rig: Rig) -> None:
    one = await rig.register(0, Cell(["up up up up up"], version=4))
    one.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [rigs.SYSTEM, rigs.TASK]))
        await one.spoke.wait()
        await rig.register(1, Cell(["done"], version=5))
        await rig.say("scheduler", ("cell", "0"), CellLost(cell=0, instance="i0", reason="silent"))
        reply = await asking
        one.open.set()
        assert reply["content"] == "done"
    (record,) = await rig.records()
    assert [(span.version, span.tokens) for span in record.versions] == [(5, len(ints(record.output_ids)))]
    assert record.cells == (1,)


def test_each_piece_of_a_moved_answer_keeps_the_versions_that_its_engine_named() -> None:
    plan = session().plan(Asked((SYSTEM, TASK), (), None))
    draft = Draft(plan, "x1", "i", MODEL.stop_token_ids)
    draft.request()
    assert draft.take(0, _piece(((4, 2), (5, 1)), "abort")) is None
    assert draft.request().input_ids == (*plan.full_ids, 70, 71, 72)
    whole = draft.take(1, _piece(((5, 1), (6, 2)), "stop"))
    assert whole is not None
    assert [(span.version, span.tokens) for span in whole.versions] == [(4, 2), (5, 2), (6, 2)]
    assert sum(span.tokens for span in whole.versions) == len(whole.output_ids) == len(whole.logprobs)
    assert whole.cells == (0, 1)


def _piece(versions: tuple[tuple[int, int], ...], finish: Any) -> Generation:
    spans = tuple(VersionSpan(version=version, tokens=tokens) for version, tokens in versions)
    count = sum(span.tokens for span in spans)
    return Generation(tuple(range(70, 70 + count)), (-0.5,) * count, spans, finish, 0, 0.0, 0.0)


def _to(cell: int, role: Any) -> RoleTransitionRequested:
    return RoleTransitionRequested(transition="t1", cell=cell, instance=f"i{cell}", to=role)


def _back(cell: int) -> RoleTransitionCompleted:
    return RoleTransitionCompleted(transition="t2", cell=cell, instance=f"i{cell}", to="rollout", version=1)
