"""The demo's configuration, and the closing report of any run."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from gyre.config import Config
from services.place import named
from services.views.terminal import one_line, show

FILE = Path(__file__).with_name("demo.toml")
SHORT_STEPS = 10
SHORT_EPISODES = 64
PAPER = {
    "optimizer.lr": 1e-6,
    "schedule.executions": 16,
    "cells.count": 8,
    "rollout.temperature": 1.0,
    "objective.ratio_low": 0.995,
    "objective.ratio_high": 1.005,
    "objective.weight_cap": 5.0,
    "optimizer.betas": (0.9, 0.95),
    "optimizer.eps": 1e-15,
    "optimizer.weight_decay": 0.01,
    "optimizer.clip": 1.0,
    "admission.j_max": 5,
}
"""What the paper's experiments use (§6.1 and its appendix)."""


def demo_config(_: Path | None, overrides: Sequence[str]) -> Config:
    """The shipped demo with overrides; says on stderr where its hyperparameters differ from the paper's.

    A run too short to learn anything is a look at the machinery: its evaluations are short too, unless told otherwise.
    """
    config = Config.load(FILE, overrides)
    console = Console(stderr=True)
    told = any(each.startswith("evaluation.episodes=") for each in overrides)
    if config.run.steps < SHORT_STEPS and not told:
        config = Config.load(FILE, [*overrides, f"evaluation.episodes={SHORT_EPISODES}"])
        console.print(f"evaluation.episodes = {SHORT_EPISODES} for so few steps; --set evaluation.episodes=256 for all")
    for key, value in PAPER.items():
        section, field = key.split(".")
        found = getattr(getattr(config, section), field)
        if found != value:
            console.print(f"{key} = {found} here, {value} in the paper", highlight=False, soft_wrap=True)
    return config


def report(result: dict[str, Any]) -> None:
    """The summary for people."""
    console = Console(highlight=False, soft_wrap=True)
    rewards = [each for each in result["rewards"] if each is not None]
    third = max(1, len(rewards) // 3)
    console.print(f"run {result['run']}: {result['steps']} steps in {result['seconds']:.0f} s")
    if result["eval_before"] is not None:
        after = result["eval_after"]
        rise = "" if after is None else f" -> {after:.3f} after ({after - result['eval_before']:+.3f})"
        console.print(
            f"held-out reward    {result['eval_before']:.3f} before{rise}, {result['eval_episodes']} episodes"
        )
    if rewards:
        early, late = fmean(rewards[:third]), fmean(rewards[-third:])
        console.print(f"training reward    {early:.3f} in the first third of steps, {late:.3f} in the last")
    if result["step_seconds"]:
        times = result["step_seconds"]
        console.print(
            f"step time          mean {fmean(times):.2f} s, shortest {min(times):.2f} s, longest {max(times):.2f} s"
        )
    expected = result["staleness_expected"]
    foreseen = "" if expected is None else f", {expected:.3f} expected"
    console.print(f"staleness          {result['staleness_mean']:.3f} realised{foreseen}")
    same = result["dispatched"] == result["launched"] == result["terminated"]
    console.print(
        f"executions         d = {result['dispatched']}, p = {result['launched']}, f = {result['terminated']}"
        f"{' (all closed)' if same else ''}"
    )
    matches = result["micro_steps"] == result["micro_steps_committed"]
    console.print(
        f"ledger             {result['micro_steps_committed']} of {result['micro_steps']} micro-steps in the updates"
        f"{', each once' if matches else ''}"
    )
    show(console, [f"archive            {one_line(str(result['archive']))}"])
    run = one_line(named(Path(result["archive"]).parent))
    show(console, [f"next               gyre log stats {run} · gyre replay {run} --verify · gyre tree {run} x0-0"])
