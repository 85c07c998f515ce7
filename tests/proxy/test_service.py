"""The proxy as harnesses and cells meet it: over HTTP, on the log, through failures."""

import asyncio
import json

import pytest

from gyre.core import tree as trees
from gyre.core.tree import record_digest, records_digest
from gyre.proxy.tokens import episode, execution_token
from schemas.base import ints
from schemas.calls import (
    HistoryRejected,
    ModelCallRetried,
    RecordsSealed,
    RequestCancelled,
    RouteAssigned,
    RouteMoved,
)
from schemas.rewards import TreeBuilt
from schemas.roles import CellLost, RoleTransitionCompleted, RoleTransitionRequested
from schemas.runs import EvaluationScored, EvaluationStarted
from services.builder import serve_builder
from tests.proxy.rig import MODEL, SECRET, SYSTEM, TASK, WRITE, Cell, Rig, assembled, events
from tests.proxy.templates import with_template


async def test_a_whole_episode_is_recorded_exactly_as_the_engine_was_asked_and_answered(rig: Rig) -> None:
    cell = await rig.register(0, Cell([WRITE, "done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        first = await client.reply(token, [SYSTEM, TASK])
        call = first["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {"path": "a.txt", "content": "up"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        assert (await client.reply(token, [SYSTEM, TASK, first, result]))["content"] == "done"
    tree = await rig.tree()
    records = await rig.records()
    assert [record.index for record in records] == [0, 1]
    for record, asked, given in zip(records, cell.asked, cell.given, strict=True):
        assert tuple(ints(trees.context_ids(tree, record.call))) == asked.input_ids
        assert tuple(ints(record.output_ids)) == given.output_ids
        assert record.sampling.seed == asked.sampling.seed
        assert record.delivered
        assert record.versions == given.versions
    assert records[1].parent == records[0].call
    assert records[1].cached_tokens == len(cell.asked[1].input_ids) - len(ints(records[1].input_ids))
    assert [event.cell for event in await rig.said(RouteAssigned)] == [0]


async def test_usage_and_finish_reasons_are_true(rig: Rig) -> None:
    cell = await rig.register(0, Cell([WRITE, "up " * 40]))
    token = await rig.launch()
    async with rig.proxy() as client:
        _, first = await client.post(token, [SYSTEM, TASK])
        _, second = await client.post(token, [SYSTEM, TASK], max_tokens=9)
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert first["usage"]["prompt_tokens"] == len(cell.asked[0].input_ids)
    assert first["usage"]["completion_tokens"] == len(cell.given[0].output_ids)
    assert second["choices"][0]["finish_reason"] == "length"
    assert second["usage"]["completion_tokens"] == 9


async def test_a_stream_is_the_same_turn_in_well_formed_chunks(rig: Rig) -> None:
    await rig.register(0, Cell([f"now {WRITE}{WRITE}"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with client.start(token, [SYSTEM, TASK], **options) as response:
            chunks = list(events(await response.read()))
    message = assembled(chunks)
    assert message["content"] == "now "
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == "tool_calls"
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert json.loads((await rig.records())[0].reply)[0]["tool_calls"] == message["tool_calls"]


async def test_a_stream_begins_at_once_and_is_kept_alive_until_the_turn_is_whole(rig: Rig) -> None:
    rig.keep_alive = 0.01
    cell = await rig.register(0, Cell(["done"]))
    cell.tokens = 2
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client, client.start(token, [SYSTEM, TASK], stream=True) as response:
        for _ in range(3):
            line = await response.content.readuntil(b"\n\n")
            assert json.loads(line[6:])["choices"][0]["delta"]["content"] == ""
        cell.open.set()
        rest = list(events(await response.content.read()))
    assert assembled(rest)["content"] == "done"


async def test_an_unknown_token_and_a_foreign_key_are_refused(rig: Rig) -> None:
    token = await rig.launch()
    other = await rig.launch("x2")
    async with rig.proxy() as client:
        status, body = await client.post("nobody", [TASK])
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        url, headers = f"{client.url}/x/{token}/v1/models", {"Authorization": f"Bearer {other}"}
        async with client.http.get(url, headers=headers) as response:
            assert response.status == 401
        async with client.http.get(url, headers={"Authorization": f"Bearer {token}"}) as response:
            assert (await response.json())["data"][0]["max_model_len"] == 400


async def test_a_launch_that_the_proxy_has_not_read_yet_is_waited_for(rig: Rig) -> None:
    await rig.register(0, Cell(["done"] * 20))
    async with rig.proxy() as client:
        for number in range(10):
            assert (await client.reply(await rig.launch(f"y{number}"), [TASK]))["content"] == "done"


async def test_bad_bodies_are_refused_in_the_protocols_words(rig: Rig) -> None:
    await rig.register(0, Cell([]))
    token = await rig.launch()
    async with rig.proxy() as client:
        status, body = await client.post(token, [{"role": "user", "content": "up " * 500}])
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert body["error"]["message"].startswith("prompt is too long: ")
        assert body["error"]["message"].endswith(" > 352 maximum")
        url, headers = f"{client.url}/x/{token}/v1/chat/completions", {"Authorization": f"Bearer {token}"}
        for raw in (b"{", b"[]", b'{"messages":[]}', b'{"messages":[3]}'):
            async with client.http.post(url, data=raw, headers=headers) as response:
                assert response.status == 400
                assert (await response.json())["error"]["type"] == "invalid_request_error"
    assert await rig.records() == []


async def test_a_history_that_the_template_refuses_is_said_and_answered(rig: Rig) -> None:
    rig.model = rig.folder / "m"
    refusing = "{% for m in messages %}{% if 'odd' in m.content %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    with_template(rig.model, refusing + "{% endfor %}")
    await rig.register(0, Cell([]))
    token = await rig.launch()
    async with rig.proxy() as client:
        status, body = await client.post(token, [{"role": "user", "content": "how odd"}])
        _, rejected = await rig.until(HistoryRejected)
    assert (status, rejected.reason) == (400, body["error"]["message"])
    assert rejected.reason.endswith("refuses this history: no")


async def test_lone_surrogates_from_a_client_do_not_end_its_episode(rig: Rig) -> None:
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        url, headers = f"{client.url}/x/{token}/v1/chat/completions", {"Authorization": f"Bearer {token}"}
        raw = b'{"messages":[{"role":"user","content":"file \\udcff"}]}'
        async with client.http.post(url, data=raw, headers=headers) as response:
            assert response.status == 200


async def test_an_aborted_answer_goes_on_elsewhere_from_its_partial_tokens(rig: Rig) -> None:
    text = "up up up up up up"
    one = await rig.register(0, Cell([text], version=4))
    one.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        await one.spoke.wait()
        two = await rig.register(1, Cell([" later"], version=5))
        requested = RoleTransitionRequested(transition="t1", cell=0, instance="i0", to="train")
        await rig.say("scheduler", ("cell", "0"), requested)
        await one.engine.abort_all()
        one.open.set()
        reply = await asking
    ids = MODEL.encode(text)[:2]
    assert reply["content"] == MODEL.decode(ids) + " later"
    assert two.asked[0].input_ids == (*one.asked[0].input_ids, *ids)
    assert two.asked[0].sampling.seed == one.asked[0].sampling.seed
    assert two.asked[0].sampling.max_tokens == one.asked[0].sampling.max_tokens - 2
    record = (await rig.records())[0]
    assert record.cells == (0, 1)
    assert [(span.version, span.tokens) for span in record.versions] == [(4, 2), (5, len(ints(record.output_ids)) - 2)]
    assert [event.kept_tokens for event in await rig.said(ModelCallRetried)] == [2]
    assert [(event.from_cell, event.to_cell) for event in await rig.said(RouteMoved)] == [(0, 1)]


async def test_calls_wait_while_no_cell_serves_and_go_on_when_one_does(rig: Rig) -> None:
    cell = await rig.register(0, Cell(["done"]))
    requested = RoleTransitionRequested(transition="t1", cell=0, instance="i0", to="train")
    await rig.say("scheduler", ("cell", "0"), requested)
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        await rig.launch("x2")
        assert not (await asyncio.wait((asking,), timeout=0.1))[0]
        completed = RoleTransitionCompleted(transition="t2", cell=0, instance="i0", to="rollout", version=1)
        await rig.say("cell", ("cell", "0"), completed)
        assert (await asking)["content"] == "done"
    assert len(cell.asked) == 1


async def test_a_lost_cell_is_not_waited_for(rig: Rig) -> None:
    one = await rig.register(0, Cell(["up up up"]))
    one.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        await one.spoke.wait()
        await rig.register(1, Cell(["done"]))
        await rig.say("scheduler", ("cell", "0"), CellLost(cell=0, instance="i0", reason="silent"))
        assert (await asking)["content"] == "done"


async def test_an_engine_that_refuses_for_now_is_asked_again(rig: Rig) -> None:
    cell = await rig.register(0, Cell(["done"]))
    await cell.engine.release()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        await rig.until(ModelCallRetried)
        await cell.engine.resume({}, 1)
        assert (await asking)["content"] == "done"
    assert len(await rig.said(ModelCallRetried)) == 1


async def test_a_client_that_hangs_up_cancels_the_engines_request(rig: Rig) -> None:
    cell = await rig.register(0, Cell(["up up up", "done"]))
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        await cell.spoke.wait()
        asking.cancel()
        _, event = await rig.until(RequestCancelled)
        assert event.reason == "client gone"
        assert cell.engine.running == 0
        cell.open.set()
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == "done"
    assert [record.reply for record in await rig.records()] == ['[{"content":"done","role":"assistant"}]']


async def test_the_same_request_twice_in_flight_is_one_generation(rig: Rig) -> None:
    cell = await rig.register(0, Cell([WRITE]))
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        first = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        await cell.spoke.wait()
        second = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        gone = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))
        await asyncio.sleep(0.05)
        gone.cancel()
        cell.open.set()
        assert await first == await second
    assert len(cell.asked) == 1
    assert len(await rig.records()) == 1


async def test_the_same_request_after_its_answer_is_another_call(rig: Rig) -> None:
    await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        replies = [(await client.reply(token, [SYSTEM, TASK]))["content"] for _ in range(2)]
    assert replies == ["one", "two"]
    assert len((await rig.tree()).nodes) == 2


async def test_a_restarted_proxy_knows_the_trees_and_gives_an_answer_that_did_not_arrive(rig: Rig) -> None:
    cell = await rig.register(0, Cell([WRITE, "done", "more"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        url = client.url
        first = await client.reply(token, [SYSTEM, TASK])
    async with rig.proxy() as client:
        assert client.url == url
        assert await client.reply(token, [SYSTEM, TASK]) == first
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "ok"}
        second = await client.reply(token, [SYSTEM, TASK, first, result])
        await client.reply(token, [SYSTEM, TASK, first, result, second, {"role": "user", "content": "on"}])
    records = await rig.records()
    assert [record.parent for record in records] == [None, records[0].call, records[1].call]
    assert len({record.call for record in records}) == 3
    assert len(cell.asked) == 3


async def test_a_terminated_execution_is_closed_sealed_and_built(rig: Rig) -> None:
    cell = await rig.register(0, Cell([WRITE, "up up up"]))
    token = await rig.launch()
    building = asyncio.create_task(serve_builder(rig.bus("builder")))
    async with rig.proxy() as client:
        await client.reply(token, [SYSTEM, TASK])
        cell.tokens = 0
        cell.spoke.clear()
        cell.open.clear()
        asking = asyncio.create_task(client.post(token, [SYSTEM, {"role": "user", "content": "more"}]))
        await cell.spoke.wait()
        await rig.terminate()
        _, sealed = await rig.until(RecordsSealed)
        assert (await asking)[0] == 503
        assert (await client.post(token, [SYSTEM, TASK]))[0] == 401
        _, built = await rig.until(TreeBuilt)
    building.cancel()
    records = await rig.records()
    assert (sealed.count, sealed.last_sequence) == (1, 1)
    assert sealed.digest == records_digest(record_digest(record) for record in records)
    assert built.digest == trees.digest(await rig.tree())
    assert trees.from_bytes(rig.bus("t").blobs.get(built.body)) == await rig.tree()
    assert [(leaf.role, leaf.final_main) for leaf in built.leaves] == [("main", True)]


async def test_a_proxy_that_comes_late_seals_once_what_an_earlier_one_left(rig: Rig) -> None:
    await rig.register(0, Cell([WRITE]))
    token = await rig.launch()
    async with rig.proxy() as client:
        await client.reply(token, [SYSTEM, TASK])
    await rig.launch("x2")
    await rig.terminate("x1")
    await rig.terminate("x2")
    async with rig.proxy():
        _, one = await rig.until(RecordsSealed, "x1")
        _, two = await rig.until(RecordsSealed, "x2")
    async with rig.proxy() as client:
        assert (await client.post(token, [SYSTEM, TASK]))[0] == 401
    assert (one.count, two.count, two.last_sequence) == (1, 0, 0)
    assert len(await rig.said(RecordsSealed)) == 2


async def test_the_builder_builds_each_tree_once_however_often_it_starts(rig: Rig) -> None:
    await rig.launch()
    await rig.terminate()
    async with rig.proxy():
        await rig.until(RecordsSealed)
    for _ in range(2):
        building = asyncio.create_task(serve_builder(rig.bus("builder")))
        await rig.until(TreeBuilt)
        await rig.launch("later")
        building.cancel()
    built = await rig.said(TreeBuilt)
    assert [(event.nodes, event.body) for event in built] == [(0, None)]


async def test_held_out_episodes_are_open_from_start_to_score(rig: Rig) -> None:
    await rig.register(0, Cell(["done"] * 2))
    token = execution_token(SECRET, episode("e1", 1))
    async with rig.proxy() as client:
        await rig.say("scheduler", ("evaluation", "e1"), EvaluationStarted(evaluation="e1", version=0, episodes=2))
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == "done"
        assert (await client.post(execution_token(SECRET, "e1-2"), [TASK]))[0] == 401
        scored = EvaluationScored(evaluation="e1", version=0, scores=b"", mean=0.0, valid=0, seconds=1.0)
        await rig.say("examiner", ("evaluation", "e1"), scored)
        await rig.launch("x9")
        assert (await client.post(token, [SYSTEM, TASK, TASK]))[0] == 401
    assert len(await rig.records("e1-1")) == 1
    assert await rig.said(RecordsSealed) == []


async def test_two_executions_are_spread_over_the_cells_and_stay_there(rig: Rig) -> None:
    cells = [await rig.register(index, Cell(["one", "two", "three"])) for index in range(2)]
    tokens = [await rig.launch(name) for name in ("x1", "x2")]
    async with rig.proxy() as client:
        for _ in range(2):
            for token in tokens:
                await client.reply(token, [SYSTEM, TASK])
    assert [{request.cache_key for request in cell.asked} for cell in cells] == [{"x2"}, {"x1"}]
    assert len(await rig.said(RouteAssigned)) == 2


async def test_a_port_in_use_by_others_is_a_one_line_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    (rig.folder / "proxy.url").write_text(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    monkeypatch.setattr("services.proxy.service._BIND_SECONDS", 0.2)
    with pytest.raises(Exception, match=r"proxy: port \d+ on 127\.0\.0\.1 cannot be used"):
        async with rig.proxy():
            pass
    server.close()
    await server.wait_closed()


async def test_many_executions_at_once_keep_their_calls_apart(rig: Rig) -> None:
    cell = await rig.register(0, Cell([WRITE] * 40))
    async with rig.proxy() as client:
        tokens = [await rig.launch(f"x{number}") for number in range(20)]
        await asyncio.gather(*(client.reply(token, [SYSTEM, TASK]) for token in tokens))
    assert len(cell.asked) == 20
    for number in range(20):
        assert [record.index for record in await rig.records(f"x{number}")] == [0]
