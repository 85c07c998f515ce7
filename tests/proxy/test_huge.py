"""What is far too long or no HTTP costs the proxy little, whoever sends it."""

import asyncio
import logging

import pytest

from gyre.proxy.adapters.generic import Generic
from gyre.proxy.errors import PromptTooLong
from gyre.proxy.exchange import Asked
from gyre.proxy.huge import refuse_huge
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.session import Limits, Session
from gyre.proxy.template import Template
from tests.proxy.rig import MODEL, TASK, Cell, Rig

MEGABYTES = 1 << 22
CALL = ToolCall("c", "write", "a" * MEGABYTES)
HUGE = {
    "text": Asked((Message("user", "a" * MEGABYTES),), (), None),
    "arguments": Asked((Message("user", "on"), Message("assistant", calls=(CALL,)), Message("user", "on")), (), None),
    "tool": Asked((Message("user", "on"),), ({"type": "function", "function": {"name": "a" * MEGABYTES}},), None),
}


@pytest.mark.parametrize("name", HUGE)
def test_of_a_huge_text_only_the_beginning_is_encoded(
    template: Template, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    live = Session("x", 7, template, Limits(1.0, 64, 2048), Generic())
    encode, sizes = type(template.model).encode, []

    def counted(model: object, text: str) -> list[int]:
        sizes.append(len(text))
        return encode(model, text)  # type: ignore[arg-type]

    monkeypatch.setattr(type(template.model), "encode", counted)
    for ask in (live.plan, live.count):
        with pytest.raises(PromptTooLong, match=r"prompt is too long: \d+ tokens > 2048 maximum"):
            ask(HUGE[name])
    assert sum(sizes) < MEGABYTES / 10


def test_a_text_of_as_many_tokens_as_fit_is_left_to_be_measured_exactly_wherever_it_is_cut() -> None:
    text = "assistant" * 30_000
    most = len(MODEL.encode(text))
    refuse_huge(MODEL.encode, (text,), most)
    with pytest.raises(PromptTooLong):
        refuse_huge(MODEL.encode, (text,), most // 2)


async def test_what_is_no_http_is_one_line_in_the_log_and_the_next_request_served(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.proxy.http._LINE_SECONDS", 0.0)
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    broken = (
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        f"X-Long: {'a' * 100_000}\r\n\r\n",
    )
    async with rig.proxy() as client:
        host, port = client.url.removeprefix("http://").split(":")
        for each in broken:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST /x/{token}/v1/chat/completions HTTP/1.1\r\nHost: h\r\n{each}".encode())
            assert (await reader.readline()).split()[1] == b"400"
            writer.close()
        assert (await client.reply(token, [TASK]))["content"] == "done"
    told = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(told) == len(broken)
    assert not any(each.exc_info or "\n" in each.getMessage() or len(each.getMessage()) > 300 for each in told)
