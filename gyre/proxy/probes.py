"""Which path is which protocol's, and the bodies of what clients only look at: the list of models, a probe.

Clients put the API's path behind the base URL that they are given, some with `/v1`, some without, some twice; anything
may stand in front of it.
"""

import re

import orjson

MESSAGES, COUNT, CHAT, RESPONSES = "messages", "messages/count_tokens", "chat/completions", "responses"
MODEL_NAME = "policy"
_API = re.compile(rf"(?:.*/)?({MESSAGES}|{COUNT}|{CHAT}|{RESPONSES})/?")
_MODELS = re.compile(r"(?:.*/)?models(?:/([^/]+))?/?")


def api_of(path: str) -> str:
    """Of a path below the execution's: the API that a POST to it asks for; "" for none."""
    found = _API.fullmatch(path)
    return found.group(1) if found else ""


def look(path: str, context_tokens: int) -> bytes | None:
    """The answer to a GET below the execution's path; None where there is nothing to see.

    The list of models satisfies OpenAI's and Anthropic's clients alike.
    """
    found = _MODELS.fullmatch(path)
    if found is None:
        return None if api_of(path) else orjson.dumps({"status": "ok"})
    if found.group(1):
        return orjson.dumps(_model(found.group(1), context_tokens))
    page = {"has_more": False, "first_id": MODEL_NAME, "last_id": MODEL_NAME}
    return orjson.dumps({"object": "list", "data": [_model(MODEL_NAME, context_tokens)], **page})


def _model(name: str, context_tokens: int) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "gyre",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "max_model_len": context_tokens,
    }
