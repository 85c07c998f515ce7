"""How a recording is played: what joins, what is given again, what has no record, and what is no recording."""

import json
from typing import Any

import pytest

from gyre.models.load import NANO
from gyre.proxy.adapters.registry import find_adapter
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.playback import Played, play
from gyre.proxy.recording import RecordingUnreadable, read
from gyre.proxy.template import Template

TEMPLATE = Template(ChatModel.load(NANO))
Event = dict[str, Any]


def request(number: int, *messages: Event, path: str = "/v1/chat/completions") -> Event:
    body = {"messages": messages or ({"role": "user", "content": "tidy"},)}
    return {"ev": "request", "n": number, "method": "POST", "path": path, "headers": [], "body": body}


def said(number: int, *blocks: Event, **more: Any) -> Event:
    return {"ev": "scripted_response", "n": number, "blocks": blocks or ({"text": "done"},), **more}


def end(number: int, event: str = "response", **more: Any) -> Event:
    return {"ev": event, "n": number, **({"status": 200} if event == "response" else {}), **more}


def played(*events: Event) -> Played:
    return play(read(json.dumps(event) for event in events), TEMPLATE, find_adapter("generic"))


def test_equal_requests_in_flight_are_one_call() -> None:
    found = played(request(1), request(2), said(1), end(1), said(2), end(2))
    assert found.requests == {"recording-c0": (1, 2)}


def test_one_of_two_clients_may_hang_up() -> None:
    found = played(request(1), request(2), end(1, "client_gone"), said(2), end(2))
    assert (found.requests, found.rejected) == ({"recording-c0": (2,)}, ())


def test_a_call_that_everybody_left_and_one_that_was_never_answered_have_no_record() -> None:
    found = played(request(1), end(1, "client_gone"), request(2), said(2))
    assert found.requests == {}
    assert found.rejected == (("request 1", "the client hung up"), ("request 2", "never answered"))


def test_an_answer_that_broke_off_is_given_to_whoever_asks_again_and_then_not_any_more() -> None:
    cut = (request(1), said(1), end(1, "reset"))
    found = played(*cut, request(2), said(2), end(2), request(3), said(3), end(3))
    assert found.requests == {"recording-c0": (1, 2), "recording-c1": (3,)}
    assert [record.delivered for record in found.records] == [True, True]
    assert [record.delivered for record in played(*cut).records] == [False]


def test_an_error_inside_a_stream_is_a_refusal() -> None:
    assert played(request(1), said(1, sse_error=True), end(1)).rejected == (("request 1", "refused, as recorded"),)


def test_a_tool_call_is_echoed_under_our_id_whatever_the_stub_called_it() -> None:
    call = {"tool": "look", "args": '{"at":\t1}', "id": "call_0"}
    echo = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
    turn = [{"role": "assistant", "content": None, "tool_calls": [echo]}]
    turn += [{"role": "tool", "tool_call_id": "call_0", "content": "nothing"}]
    begin: Event = {"role": "user", "content": "tidy"}
    found = played(request(1), said(1, call), end(1), request(2, begin, *turn), said(2, call), end(2))
    assert [record.prefix_messages for record in found.records] == [0, 2]


def test_a_call_that_the_models_wording_cannot_hold_is_named() -> None:
    found = played(request(1), said(1, {"tool": "", "args": "{}", "id": "a"}), end(1))
    assert [request for request, _ in found.rejected] == ["request 1"]
    assert "cannot be said in the model's wording" in found.rejected[0][1]


def test_a_path_that_is_no_model_and_a_body_that_is_no_request_are_named() -> None:
    empty = request(2)
    empty["body"] = {}
    found = played(request(1, path="/v1/embeddings"), end(1), empty, end(2))
    assert [request for request, _ in found.rejected] == ["request 1", "request 2"]
    assert "/v1/embeddings: is no endpoint of a model" in found.rejected[0][1]
    assert "messages: must be a list" in found.rejected[1][1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[", "line 1: is not JSON"),
        ("[]", "line 1: must be an object"),
        ('{"n": 1}', "line 1: must be an object"),
        (json.dumps(request(1) | {"body": None}), "request 1: its body must be an object"),
        (
            json.dumps(request(1) | {"body": {"tools": {"$same_tools_as_request": 7}}}),
            "request 1: takes tools from a request without any",
        ),
    ],
)
def test_what_is_no_recording_is_told_by_its_line(line: str, says: str) -> None:
    with pytest.raises(RecordingUnreadable, match=says):
        read([line])
