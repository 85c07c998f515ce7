"""What the bodies of all protocols have in common when they are read: tolerant of everything but nonsense.

Images cannot be shown to the policy. In a message of the user's own they are refused, since the task may depend on
them; in a tool's result a mark stands for them: the policy asked to see a file, and its episode goes on.
"""

import json
from collections.abc import Iterator

import orjson

from gyre.proxy.errors import BadRequest
from gyre.proxy.normalise import Json

IMAGES = frozenset(("image", "image_url", "input_image"))
_MOST_STOPS = 64


def json_object(body: bytes) -> Json:
    """The JSON object that a body is. Raises BadRequest."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = _mended(body)
    if not isinstance(value, dict):
        raise BadRequest("body: must be a JSON object")
    return value


def limit_of(request: Json, *names: str) -> int | None:
    """The first of these fields that is a positive whole number."""
    for name in names:
        value = request.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def stops_of(value: object) -> tuple[str, ...]:
    """Stop texts: one or a list; empty ones stop nothing. Raises BadRequest for very many: each is searched for."""
    items = value if isinstance(value, list) else [value]
    if len(items) > _MOST_STOPS:
        raise BadRequest(f"stop texts: {len(items)} are too many; give at most {_MOST_STOPS}")
    return tuple(item for item in items if isinstance(item, str) and item)


def string(value: object) -> str:
    """The value if it is a string."""
    return value if isinstance(value, str) else ""


def objects(value: object) -> Iterator[Json]:
    """The objects in what may be a list."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def parts(content: object) -> Iterator[Json]:
    """Content as a list of parts; a string is one part of text."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        for part in content:
            yield {"type": "text", "text": part} if isinstance(part, str) else part if isinstance(part, dict) else {}


def text_of(content: object, between: str = "") -> str:
    """The text of content in any spelling; a mark stands for each part that has none."""
    return between.join(part_text(part) for part in parts(content))


def part_text(part: Json) -> str:
    """The text of one part."""
    for name in ("text", "refusal"):
        if isinstance(part.get(name), str):
            return string(part[name])
    if part.get("type") == "tool_reference":
        return f"[tool: {string(part.get('tool_name'))}]"
    return f"[{string(part.get('type')) or 'part'}]"


def refuse_images(content: object, where: str) -> None:
    """Raises BadRequest naming the first image of a user's message."""
    for index, part in enumerate(parts(content)):
        if string(part.get("type")) in IMAGES:
            raise BadRequest(
                f"{where}.content[{index}]: {part['type']} blocks are not supported, the policy reads text; remove it"
            )


def parsed_object(arguments: str) -> Json | None:
    """The JSON object that a call's raw arguments are; None if they are anything else."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def function_tool(name: str, description: object, parameters: object) -> Json:
    """A tool as the Chat Completions protocol writes it; without parameters it takes none."""
    schema = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": string(description), "parameters": schema}}


def _mended(body: bytes) -> object:
    """Some clients send lone surrogates (a file name that is no UTF-8): they become question marks."""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return orjson.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"body: is not JSON: {' '.join(str(error).split())[:200]}") from error
