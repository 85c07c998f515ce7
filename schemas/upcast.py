"""Stored bytes to a commit, whatever version its events were said in.

Stored events never change: a changed model gets the next `v`, and a function here lifts a payload of the old version,
as a dict before validation, one version up. The chain of each type is checked when this module is imported. What no
model accepts even so is `Malformed`, with a reason of one line for the quarantine.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import pydantic_core
from pydantic import ValidationError

from schemas.base import Model
from schemas.envelope import COMMIT, Commit, Event

Payload = dict[str, Any]
Upcaster = Callable[[Payload], Payload]


def _without_moments(completed: Payload) -> Payload:
    """MicroStepCompleted v1 did not sum what a correlation of log-probabilities needs."""
    return {**completed, "stats": [{**stats, "moments": None} for stats in completed["stats"]]}


def _of_unknown_provenance(assessment: Payload) -> Payload:
    """AssessmentRecorded v1 did not say who judged."""
    return {**assessment, "provenance": None}


def _of_unknown_setup(terminated: Payload) -> Payload:
    """ExecutionTerminated v1 did not say how long its set-up took."""
    return {**terminated, "setup_seconds": None}


def _by_the_first_rules(taken: Payload) -> Payload:
    """OfficeTaken v1 was said by deciders that knew no others."""
    return {**taken, "rules": 1}


def _held_against_it(discarded: Payload) -> Payload:
    """ContributionDiscarded v1 counted against what the cell worked on, whatever its reason."""
    return {**discarded, "broken": True}


UPCASTERS: Mapping[tuple[str, int], Upcaster] = {
    ("MicroStepCompleted", 1): _without_moments,
    ("ExecutionTerminated", 1): _of_unknown_setup,
    ("AssessmentRecorded", 1): _of_unknown_provenance,
    ("OfficeTaken", 1): _by_the_first_rules,
    ("ContributionDiscarded", 1): _held_against_it,
}
"""(event type, version it reads) -> the payload of the next version; `v` is counted up by the caller."""


class Malformed(ValueError):
    """Bytes that are no commit of ours; `reason` is one line."""

    def __init__(self, reason: str) -> None:
        """Say why."""
        super().__init__(reason)
        self.reason = reason


class BrokenChain(Exception):
    """The upcasters do not lead from every old version to the one that the model says."""


def event_models() -> dict[str, type[Model]]:
    """Every event model by its type name, in the order of the union."""
    return {model.__name__: model for model in get_args(get_args(Event)[0])}


def current_version(model: type[Model]) -> int:
    """The version that an event model says now."""
    version: int = model.model_fields["v"].default
    return version


def check_chain(upcasters: Mapping[tuple[str, int], Upcaster], versions: Mapping[str, int]) -> None:
    """Every type's old versions lead, one by one, to its current one.

    Raises:
        BrokenChain: names the type, the version where the chain breaks and the version it should reach.
    """
    for kind, version in upcasters:
        if kind not in versions:
            raise BrokenChain(f"upcaster for {kind} v{version}: there is no event of this type")
        if not 1 <= version < versions[kind]:
            raise BrokenChain(f"upcaster for {kind} v{version}: it leads past the current version v{versions[kind]}")
    for kind, current in versions.items():
        for version in range(1, current):
            if (kind, version) not in upcasters:
                raise BrokenChain(f"{kind}: no upcaster from v{version} to v{version + 1}, current is v{current}")


def load(body: bytes) -> Commit:
    """The commit in stored bytes, its events upcast to the versions of today.

    Raises:
        Malformed: they are none; the reason names the first field at fault.
    """
    try:
        commit: Commit = COMMIT.validator.validate_json(body)  # the adapter's own way there costs a tenth more
    except ValidationError as error:
        return _load_old(body, error)
    return commit


def refuse_misplaced(subject: str, run: str, service: str) -> None:
    """Raise `Malformed` for a commit that says another run or service than the subject under which it is stored.

    The subject is what a server lets only some users say something on, and what readers choose by; the commit is what
    they go by. One in another's name would be a fact to some of them and none to others.
    """
    if subject.startswith((f"ev.{run}.{service}.", f"call.{run}.")):
        return
    kind, told, speaker, *_ = (*subject.split("."), "", "")
    if kind in {"ev", "call"} and run != told:
        raise Malformed(f"run: {run} on a subject of run {told}")
    if kind == "ev" and service != speaker:
        raise Malformed(f"producer.service: {service} on a subject of {speaker}")


def upcast(payload: Payload, upcasters: Mapping[tuple[str, int], Upcaster]) -> Payload:
    """An event's payload lifted as far as the chain goes; payloads of no known version come back as they are."""
    while (step := upcasters.get((str(payload.get("type")), _version(payload)))) is not None:
        payload = {**step(payload), "v": _version(payload) + 1}
    return payload


def _load_old(body: bytes, error: ValidationError) -> Commit:
    try:
        commit = pydantic_core.from_json(body)
        events = [upcast(event, UPCASTERS) for event in commit["events"]]
        lifted = events != commit["events"]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Malformed(first_line(error)) from error
    if not lifted:
        raise Malformed(first_line(error)) from error
    return _validate({**commit, "events": events})


def _validate(commit: Payload) -> Commit:
    try:
        return COMMIT.validate_json(pydantic_core.to_json(commit))
    except ValidationError as error:
        raise Malformed(first_line(error)) from error


def _version(payload: Payload) -> int:
    version = payload.get("v")
    return version if type(version) is int else -1


def first_line(error: ValidationError) -> str:
    """A validation error in one line: the first field at fault, what is wrong with it, how many more there are."""
    first, *others = error.errors(include_url=False, include_input=False, include_context=False)
    place = ".".join(str(part) for part in first["loc"]) or "body"
    more = f" (and {len(others)} more)" if others else ""
    return " ".join(f"{place}: {first['msg']}{more}".split())[:500]


check_chain(UPCASTERS, {kind: current_version(model) for kind, model in event_models().items()})
