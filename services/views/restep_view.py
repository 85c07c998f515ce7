"""What `gyre restep` shows: a step as it was recorded, beside what came out now."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from schemas.training import ExecutionStats
from services.reexecute import Restep, Told, restep, restep_from_start
from services.restep import Trial, restep_under
from services.source import Source
from services.views.terminal import show, table

Found = dict[str, Any]
SHOWN = 20
"""Executions in the table; `--json` has all."""


async def again(source: Source, step: int, told: Told, *, from_start: bool, tolerance: float) -> Found:
    """The step as the run did it; `differences` says what came out otherwise. Raises `ReexecutionError`."""
    do = restep_from_start if from_start else restep
    done = await do(source, step, told=told)
    return {
        **_head(source, done, done.at),
        "settings": [],
        "recomputed": _figures(done.loss, done.gradient_norm, done.found),
        "gradients_apart": done.apart,
        "executions": [*_executions(done.recorded, done.found)],
        "differences": list(done.differences(tolerance)),
    }


async def under(source: Source, step: int, overrides: Sequence[str], told: Told) -> Found:
    """The step under other settings: there is nothing that it has to be equal to."""
    done = await restep_under(source, step, overrides, told)
    figures = _figures(done.loss, done.gradient_norm, done.found)
    return {
        **_head(source, done, "recorded"),
        "settings": list(done.settings),
        "recomputed": {**figures, "clip_coefficient": done.clip_coefficient},
        "gradients_apart": done.apart,
        "executions": [
            {**each, "advantage": done.advantages.get(each["execution"])}
            for each in _executions(done.recorded, done.found)
        ],
        "differences": [],
    }


def _head(source: Source, done: Restep | Trial, at: str) -> Found:
    stepped = done.origin.stepped
    figures = _figures(stepped.loss, stepped.gradient_norm, dict(done.recorded))
    return {
        "run": source.run,
        "step": done.step,
        "at": at,
        "weights": done.origin.weights.digest,
        "groups": [each.group for each in done.origin.groups],
        "micro_steps": len(done.origin.trained),
        "recorded": {**figures, "clip_coefficient": stepped.clip_coefficient},
    }


def _figures(loss: float, norm: float, stats: dict[str, ExecutionStats] | Any) -> Found:
    found = list(stats.values())
    targets = sum(each.targets for each in found)
    return {
        "loss": loss,
        "gradient_norm": norm,
        "executions": len(found),
        "masked": sum(1 - each.mask for each in found),
        "targets": targets,
        "mean_ratio": fmean(each.ratio for each in found) if found else None,
        "max_delta_log_p": max((each.max_delta_log_p for each in found), default=0.0),
        "k3": sum(each.k3 for each in found) / targets if targets else 0.0,
    }


def _executions(before: Any, now: Any) -> Iterator[Found]:
    for name in sorted(before.keys() | now.keys()):
        yield {"execution": name, "recorded": _told(before.get(name)), "recomputed": _told(now.get(name))}


def _told(stats: ExecutionStats | None) -> Found | None:
    return None if stats is None else stats.model_dump(include={"targets", "ratio", "mask", "loss"})


def draw(found: Found, console: Console) -> None:
    """Draw it for people."""
    settings = f" under {' '.join(found['settings'])}" if found["settings"] else ""
    head = f"step {found['step']} of {found['run']}{settings}, at {found['at']} weights {found['weights'][:12]}"
    show(console, [Text(head, "bold"), f"{', '.join(found['groups'])}; {found['micro_steps']} micro-steps"])
    rows = [
        (name.replace("_", " "), _value(value), _value(found["recomputed"][name]))
        for name, value in found["recorded"].items()
        if name in found["recomputed"]
    ]
    if found["gradients_apart"] is not None:
        rows.append(("gradient, relative distance", "", _value(found["gradients_apart"])))
    console.print(table(("", "recorded", "now"), rows))
    _draw_executions(found, console)
    if found["settings"]:
        return
    for line in found["differences"] or ["nothing came out otherwise than it was recorded"]:
        show(console, [line])


def _draw_executions(found: Found, console: Console) -> None:
    """Those whose mask or targets are not what they were."""
    moved = [each for each in found["executions"] if _fixed(each["recorded"]) != _fixed(each["recomputed"])]
    if not moved:
        return
    rows = ((each["execution"], _execution(each["recorded"]), _execution(each["recomputed"])) for each in moved[:SHOWN])
    console.print(table(("execution", "recorded", "now"), rows))
    if len(moved) > SHOWN:
        show(console, [f"... and {len(moved) - SHOWN} more; --json has them all"])


def _fixed(told: Found | None) -> tuple[int, int] | None:
    return None if told is None else (told["targets"], told["mask"])


def _execution(told: Found | None) -> str:
    if told is None:
        return "not trained"
    return f"ratio {told['ratio']:.5f}, {'trains' if told['mask'] else 'masked'}, {told['targets']} targets"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
