"""Write what may be said for readers outside Python: `python -m schemas.export docs/events`.

A JSON Schema for each event type as it stands on the wire, an AsyncAPI 3 document with a channel for each service
kind, and a table for people. A test checks that the written files are up to date.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from schemas.base import Model
from schemas.envelope import Commit
from schemas.speakers import SERVICES, SPEAKERS, Service, stream_of
from schemas.upcast import current_version, event_models

Json = dict[str, Any]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PACKED = "Bytes are base64url. Token ids are packed little-endian int32, log-probabilities little-endian float32."


def main(arguments: list[str]) -> int:
    """Write every file into the folder given as the one argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m schemas.export FOLDER\n")
        return 2
    write(Path(arguments[0]))
    return 0


def write(folder: Path) -> None:
    """Bring a folder up to date: what `render` says is there, JSON files of former types are not."""
    folder.mkdir(parents=True, exist_ok=True)
    files = render()
    for old in folder.glob("*.json"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def render() -> dict[str, str]:
    """File name -> content of everything in `docs/events`."""
    schemas = {f"{kind}.json": _text(event_schema(model)) for kind, model in event_models().items()}
    return {"README.md": table(), "asyncapi.json": _text(asyncapi()), **schemas}


def event_schema(model: type[Model]) -> Json:
    """The JSON Schema of one event type as it is written, with the sentence of each field."""
    schema = model.model_json_schema(mode="serialization")
    for name, part in schema.get("$defs", {}).items():
        _describe(part, _MODELS[name])
    _describe(schema, model)
    return {"$schema": _DIALECT, **schema}


def asyncapi() -> Json:
    """The AsyncAPI 3 document: who sends which events on which subjects."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "gyre event log",
            "version": "1",
            "description": f"Every fact of a run. A message is a commit: all the events of one decision. {_PACKED}",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {name: _channel(name, service, stream) for name, service, stream in _channels()},
        "operations": {
            f"{name}.say": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/commit"}],
            }
            for name, _, _ in _channels()
        },
        "components": {"schemas": _components()},
    }


def table() -> str:
    """The README: every type with its version, who says it, its stream and its first sentence."""
    lines = [
        "# What may be said",
        "",
        "Written by `python -m schemas.export docs/events` from `schemas/`; a test checks that it is up to date.",
        f"A message of the log is a commit that holds one or more of these events. {_PACKED}",
        "[asyncapi.json](asyncapi.json) says the same for machines.",
    ]
    area = ""
    for kind, model in event_models().items():
        if area != (area := model.__module__.removeprefix("schemas.")):
            lines += ["", f"## {area}", "", "| event | v | said by | stream | |", "|---|---|---|---|---|"]
        lines.append(_table_row(kind, model))
    return "\n".join(lines) + "\n"


def _table_row(kind: str, model: type[Model]) -> str:
    speakers = ", ".join(sorted(SPEAKERS[kind]))
    cells = (f"[{kind}]({kind}.json)", str(current_version(model)), speakers, stream_of(kind), _sentence(model))
    return f"| {' | '.join(cells)} |"


def _channels() -> list[tuple[str, Service, str]]:
    return [(service, service, "EV") for service in SERVICES] + [("calls", "proxy", "CALL")]


def _channel(name: str, service: Service, stream: str) -> Json:
    kinds = [kind for kind, speakers in SPEAKERS.items() if service in speakers and stream_of(kind) == stream]
    entity = {"description": "One or more tokens: what it is about."}
    run = {"description": "Id of the run."}
    return {
        "address": f"ev.{{run}}.{service}.{{entity}}" if stream == "EV" else "call.{run}.{execution}",
        "description": f"Stream {stream}_{{run}}: what `{service}` says.",
        "parameters": {"run": run, "entity": entity}
        if stream == "EV"
        else {"run": run, "execution": {"description": "Id of the execution whose model calls these are."}},
        "messages": {
            "commit": {"name": f"{name}.commit", "contentType": "application/json", "payload": _commit_of(kinds)}
        },
    }


def _commit_of(kinds: list[str]) -> Json:
    events = {"oneOf": [{"$ref": f"#/components/schemas/{kind}"} for kind in kinds]}
    return {
        "allOf": [{"$ref": "#/components/schemas/Commit"}],
        "properties": {"events": {"type": "array", "items": events}},
    }


def _components() -> Json:
    models = [(model, "serialization") for model in (Commit, *event_models().values())]
    _, schema = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    parts: Json = schema["$defs"]
    for name, part in parts.items():
        _describe(part, _MODELS[name])
    parts["Commit"]["properties"]["events"] |= {"items": {"type": "object"}}
    return parts


def _describe(schema: Json, model: type[Model]) -> None:
    """Add the sentence under each field, and which are always written: all but those that are left out when empty."""
    for field, sentence in _sentences(model.__module__).get(model.__name__, {}).items():
        schema["properties"][field]["description"] = sentence
    schema["required"] = [name for name in schema["properties"] if model.model_fields[name].exclude_if is None]


@cache
def _sentences(module: str) -> dict[str, dict[str, str]]:
    """Class name -> field -> the string that stands under it in the source."""
    classes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {part.name: dict(_under_fields(part)) for part in classes if isinstance(part, ast.ClassDef)}


def _under_fields(part: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(part.body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(sentence))):
                yield name, inspect.cleandoc(sentence)


def _sentence(model: type[Model]) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split()).replace("|", "\\|")


def _text(document: Json) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


_MODELS: Mapping[str, type[Model]] = {model.__name__: model for model in Model.__subclasses__()}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
