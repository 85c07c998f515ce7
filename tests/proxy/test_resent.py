"""Which requests are one, sent again, and which are two that look alike."""

import asyncio
from typing import Any

from gyre.proxy.adapters.generic import Generic
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message
from gyre.proxy.sent import Sent
from gyre.proxy.session import Limits, Session
from gyre.proxy.template import Template
from services.proxy.seat import Job, Seat
from tests.proxy.rig import SYSTEM, TASK, Cell, Client, Rig
from tests.proxy.templates import drawn

TRIES = "x-stainless-retry-count"


async def said(client: Client, token: str, **headers: str) -> str:
    """What one and the same request is answered."""
    url = f"{client.url}/x/{token}/v1/chat/completions"
    sent = {"Authorization": f"Bearer {token}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    body: dict[str, Any] = {"model": "any", "messages": [SYSTEM, TASK]}
    async with client.http.post(url, json=body, headers=sent) as response:
        assert response.status == 200
        return str((await response.json())["choices"][0]["message"]["content"])


async def side_by_side(rig: Rig, first: dict[str, str], second: dict[str, str]) -> tuple[list[str], Cell]:
    """The answers to a request that comes while the same one is being answered."""
    cell = await rig.register(0, Cell(["one", "two"]))
    cell.tokens = 2
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        asking = [asyncio.create_task(said(client, token, **first))]
        await cell.spoke.wait()
        cell.spoke.clear()
        asking.append(asyncio.create_task(said(client, token, **second)))
        joined = asyncio.create_task(cell.spoke.wait())
        await asyncio.wait((joined, *asking), timeout=0.3, return_when=asyncio.FIRST_COMPLETED)
        joined.cancel()
        cell.open.set()
        return list(await asyncio.gather(*asking)), cell


async def test_two_sub_agents_whose_client_names_no_threads_are_two_calls(rig: Rig) -> None:
    answers, cell = await side_by_side(rig, {TRIES: "0"}, {TRIES: "0"})
    assert sorted(answers) == ["one", "two"]
    assert len(cell.asked) == len(await rig.records()) == 2


async def test_a_second_try_joins_the_first_one(rig: Rig) -> None:
    answers, cell = await side_by_side(rig, {TRIES: "0"}, {TRIES: "1"})
    assert answers == ["one", "one"]
    assert len(cell.asked) == len(await rig.records()) == 1


async def test_a_thread_that_asks_the_same_again_is_answered_once_whatever_it_says_of_tries(rig: Rig) -> None:
    thread = {"x-claude-code-session-id": "s", TRIES: "0"}
    answers, cell = await side_by_side(rig, thread, thread)
    assert answers == ["one", "one"]
    assert len(cell.asked) == 1


async def test_equal_requests_of_two_threads_are_two_calls(rig: Rig) -> None:
    answers, cell = await side_by_side(rig, {"x-session-id": "a"}, {"x-session-id": "b"})
    assert sorted(answers) == ["one", "two"]
    assert len(cell.asked) == 2


async def test_after_a_restart_one_answer_that_may_be_lost_is_given_to_one_of_two_threads(rig: Rig) -> None:
    await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        assert await said(client, token, x_session_id="a") == "one"
    async with rig.proxy() as client:
        answers = await asyncio.gather(*(said(client, token, x_session_id=name) for name in ("a", "b")))
    assert sorted(answers) == ["one", "two"]
    assert len(await rig.records()) == 2


def test_an_answer_on_its_way_to_one_thread_is_not_given_to_another_and_free_again_if_it_did_not_arrive(
    template: Template,
) -> None:
    live = Session("x", 7, template, Limits(1.0, 64, 2048), Generic())
    asked = Asked((Message("user", "look"),), (), None)
    plan = live.plan(asked)
    seat = Seat(live)
    seat.take(1, live.record(plan, drawn(template, plan, "done"), total_seconds=0.0, delivered=True))
    sent = Sent.of("chat/completions", {"x-session-id": "a"}, b"{}")
    assert seat.lost(live.finished(asked)) == plan.call
    job = seat.jobs[plan.call] = Job(plan.call, plan.tokens, sent, seat)
    assert seat.lost(live.finished(asked)) is None
    assert seat.repeated(sent) is job
    assert seat.repeated(Sent.of("chat/completions", {"x-session-id": "b"}, b"{}")) is None
    seat.over(job)
    assert seat.lost(live.finished(asked)) == plan.call


def test_requests_are_the_same_by_api_thread_and_body() -> None:
    one = Sent.of("messages", {"thread-id": "a"}, b"body")
    assert Sent.of("messages", {"thread-id": "a", "user-agent": "x"}, b"body").repeats(one)
    assert Sent.of("messages", {"thread-id": "a"}, b"body").digest() == one.digest()
    for api, headers, body in (
        ("responses", {"thread-id": "a"}, b"body"),
        ("messages", {"thread-id": "b"}, b"body"),
        ("messages", {}, b"body"),
        ("messages", {"thread-id": "a"}, b"bodY"),
    ):
        other = Sent.of(api, headers, body)
        assert not other.repeats(one)
        assert other.digest() != one.digest()
