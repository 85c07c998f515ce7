"""`gyre samples`: what an execution contributed to training, token by token, rebuilt from the recorded event alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from gyre.config import Config
from gyre.core.samples import Piece, difference, pieces
from gyre.errors import GyreError
from gyre.proxy.chat_model import ChatModel
from schemas.base import floats, ints
from schemas.training import TrajectoriesAdmitted, Trajectory
from services.execution_log import Facts, Training, chat_model, facts_of, training_of
from services.source import Source
from services.views.tree_view import effect_of

Decode = Callable[[int], str | None]
"""A token's text; None where the model is not at hand."""
Token = dict[str, Any]
_WHY = {
    "open": "it is not closed yet",
    "unscored": "it has no reward yet",
    "waiting": "its group is not ready yet",
    "surplus": "it is a surplus: its group closed with others that were scored before it",
    "excluded": "it has no valid reward",
    "placeholder": "its group is not ready yet",
    "held out": "it is a held-out episode",
}


class NoSamples(GyreError):
    """The execution has no recorded samples, or not this one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One admitted trajectory and where its tokens came from."""

    trajectory: Trajectory
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """All that one execution trains."""

    run: str
    event: TrajectoriesAdmitted
    samples: tuple[Sample, ...]
    weight: float
    """1 / (B N L_i): of each target; 0 without targets."""
    difference: str | None
    """From a fresh draw with the recorded seed; None when it gives the same, token for token."""
    training: Training | None
    chat: ChatModel | None


async def samples_of(source: Source, execution: str, leaf: str | None = None) -> Samples:
    """The samples of an execution, or the one of a leaf.

    Raises:
        ExecutionNotFound: the log says nothing of it.
        NoSamples: nothing was admitted of it, or not this leaf.
    """
    facts = await facts_of(source, execution)
    config = Config.recorded((await source.started()).config)
    event = facts.first(TrajectoriesAdmitted)
    if event is None:
        raise NoSamples(
            f"execution {execution}: no samples, {_WHY.get(facts.standing, facts.standing)}; see `gyre tree`"
        )
    kept = [each for each in event.trajectories if leaf in (None, each.leaf)]
    if leaf is not None and not kept:
        known = ", ".join(each.leaf for each in event.trajectories) or "none"
        raise NoSamples(f"--leaf {leaf}: not admitted; admitted are {known}; `gyre tree` says why not the rest")
    tree = facts.tree()
    size = config.schedule.groups * config.schedule.executions * event.targets
    return Samples(
        run=source.run,
        event=event,
        samples=tuple(Sample(each, pieces(tree, each)) for each in kept),
        weight=1.0 / size if size else 0.0,
        difference=_difference(facts, event, config),
        training=await training_of(source, facts),
        chat=chat_model(config.model.path),
    )


def plain(found: Samples) -> dict[str, Any]:
    """The samples as plain data, one object a token."""
    event, decode = found.event, decoder(found.chat)
    trajectories = [
        {
            "leaf": sample.trajectory.leaf,
            "role": sample.trajectory.role,
            "targets": sample.trajectory.targets,
            "tokens": list(tokens(sample, found.weight, decode)),
        }
        for sample in found.samples
    ]
    return {
        "run": found.run,
        **event.model_dump(mode="json", include={"execution", "group", "version", "advantage", "targets", "seed"}),
        "weight": found.weight,
        "same_as_fresh_draw": found.difference is None,
        "difference": found.difference,
        "effect": effect_of(event, found.training),
        "trajectories": trajectories,
    }


def tokens(sample: Sample, weight: float, decode: Decode, start: int = 0, stop: int | None = None) -> Iterator[Token]:
    """The sample's tokens from `start` to before `stop`, in order, one object each."""
    ids = ints(sample.trajectory.ids)
    for piece in sample.pieces:
        logprobs = floats(piece.logprobs)
        for place in range(max(start, piece.start), min(piece.stop, len(ids) if stop is None else stop)):
            yield {
                "position": place,
                "token": decode(ids[place]),
                "id": ids[place],
                "target": piece.target,
                "call": piece.call,
                "source": piece.source,
                "logprob": logprobs[place - piece.start] if logprobs else None,
                "version": piece.version,
                "weight": weight if piece.target else 0.0,
            }


def decoder(chat: ChatModel | None) -> Decode:
    """The text of single tokens, each kind decoded once; half a character is shown as one that is unknown."""
    if chat is None:
        return lambda _: None
    return cache(lambda token: chat.decode([token]))


def _difference(facts: Facts, event: TrajectoriesAdmitted, config: Config) -> str | None:
    """Only a validly scored execution has anything to draw from."""
    tree = facts.tree()
    ends = facts.leaves(tree) if facts.standing == "drawn" else ()
    return difference(tree, ends, event, j_max=config.admission.j_max)
