"""docs/events says what schemas/ says, in documents whose references resolve."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.export import main, render, write
from schemas.speakers import SPEAKERS
from schemas.upcast import event_models

WRITTEN = Path(__file__).parents[2] / "docs" / "events"
RENDERED = render()
DOCUMENT = json.loads(RENDERED["asyncapi.json"])


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def resolve(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for key in reference.removeprefix("#/").split("/"):
        document = document[key]
    return document


def test_the_written_documents_are_up_to_date() -> None:
    """After a change in schemas/: make events."""
    assert {path.name: path.read_text() for path in WRITTEN.iterdir()} == RENDERED


@pytest.mark.parametrize("name", [name for name in RENDERED if name.endswith(".json")])
def test_every_reference_in_a_document_resolves(name: str) -> None:
    document = json.loads(RENDERED[name])
    assert all(resolve(document, reference) for reference in references(document))


@pytest.mark.parametrize("kind", event_models())
def test_a_schema_requires_every_field_that_is_always_written(kind: str) -> None:
    schema, fields = json.loads(RENDERED[f"{kind}.json"]), event_models()[kind].model_fields
    assert schema["required"] == [name for name, field in fields.items() if field.exclude_if is None]
    assert list(schema["properties"]) == list(fields)
    assert schema["additionalProperties"] is False


def test_the_sentence_under_a_field_is_its_description() -> None:
    schema = json.loads(RENDERED["GroupAssigned.json"])
    assert schema["properties"]["staleness"]["description"] == "d = v_t - v_d, training steps."


def test_each_channel_carries_exactly_what_its_service_may_say() -> None:
    said: dict[str, set[str]] = {}
    for name, channel in DOCUMENT["channels"].items():
        events = channel["messages"]["commit"]["payload"]["properties"]["events"]["items"]["oneOf"]
        for event in events:
            said.setdefault(event["$ref"].rsplit("/", 1)[1], set()).add("proxy" if name == "calls" else name)
    assert said == SPEAKERS


def test_each_operation_says_a_message_of_its_channel() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    for operation in DOCUMENT["operations"].values():
        (message,) = operation["messages"]
        assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")


def test_writing_again_removes_what_is_no_longer_said(tmp_path: Path) -> None:
    (tmp_path / "Retired.json").write_text("{}")
    assert main([str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(RENDERED)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_without_a_folder_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
