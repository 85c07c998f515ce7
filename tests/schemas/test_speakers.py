"""Who may say what: total over the union, and what the models' own sentences claim."""

import re

import pytest

from schemas.speakers import ENTITIES, SERVICES, SINGLETONS, SPEAKERS, may_say, stream_of
from schemas.upcast import event_models

MODELS = event_models()


def test_every_event_has_a_speaker_and_nothing_else_has() -> None:
    assert set(SPEAKERS) == set(MODELS)
    assert all(SPEAKERS.values())


def test_every_speaker_is_a_known_service_and_every_service_speaks() -> None:
    assert frozenset().union(*SPEAKERS.values()) == frozenset(SERVICES)


@pytest.mark.parametrize("kind", MODELS)
def test_a_type_has_one_kind_of_producer(kind: str) -> None:
    assert len(SPEAKERS[kind]) == 1 or SPEAKERS[kind] == SINGLETONS


@pytest.mark.parametrize("kind", MODELS)
def test_the_sentence_of_a_model_names_its_speaker(kind: str) -> None:
    named = re.search(r"Said (?:once )?by (?:the core )?`(\w+)`", MODELS[kind].__doc__ or "")
    if named is not None:
        assert SPEAKERS[kind] == {named[1]}
    else:
        assert len(SPEAKERS[kind]) > 1 or kind == "EventQuarantined"


def test_request_records_and_what_corrects_them_alone_stand_in_call() -> None:
    assert [kind for kind in MODELS if stream_of(kind) == "CALL"] == ["ModelCallRecorded", "DeliveryCorrected"]


def test_every_event_of_ev_has_subjects_and_no_other_name_has() -> None:
    spoken_of = {kind for kind, entities in ENTITIES.items() if entities}
    assert spoken_of == {kind for kind in MODELS if stream_of(kind) == "EV"}
    assert set(ENTITIES) == set(MODELS)


def test_nobody_else_may_say_it() -> None:
    assert may_say("runner", "ExecutionTerminated")
    assert not may_say("scheduler", "ExecutionTerminated")
    assert not may_say("runner", "NeverHeardOf")
