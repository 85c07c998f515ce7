"""What a simulation found, as tables for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from services.views.terminal import paragraphs, show


def draw(found: Mapping[str, Any], console: Console) -> None:
    """One of the reports of `services.simulate`, or of `services.whatif`."""
    if "rows" in found:
        _rows(found, console)
    elif "speedups" in found:
        _speedups(found, console)
    elif "run" in found:
        _retold(found, console)
    else:
        console.print(
            f"{found['executions']} executions on {found['cells']} cells, {found['steps']} steps, "
            f"{found['transitions']} role transitions: {found['hours']:.1f} simulated hours in {found['seconds']:.1f} s"
        )


def _rows(found: Mapping[str, Any], console: Console) -> None:
    table = Table("row", "paper (h)", "simulated (h)", "sd", "residual", "/ E0", "staleness", box=None)
    for name, row in found["rows"].items():
        table.add_row(
            name,
            f"{row['paper_hours']:.2f}",
            f"{row['hours']:.2f}",
            f"{row['sd']:.2f}",
            f"{row['residual_percent']:+.1f} %",
            f"{row['ratio_to_E0']:.3f}",
            f"{row['staleness']:.4g}",
        )
    console.print(table)
    _summary(found, console)
    for fast, slow in found["broken_orderings"]:
        console.print(f"order broken: {fast} should be faster than {slow}")


def _speedups(found: Mapping[str, Any], console: Console) -> None:
    table = Table("dataset", "E[d]", "over", "step", "paper", "simulated", "residual", box=None)
    for each in found["speedups"]:
        table.add_row(
            each["dataset"],
            f"{each['staleness']:g}",
            each["baseline"],
            str(each["step"]),
            f"{each['paper']:.3f}",
            f"{each['simulated']:.3f}",
            f"{each['residual_percent']:+.1f} %",
        )
    console.print(table)
    _summary(found, console)


def _summary(found: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"{found['seeds']} seeds; residuals against the paper: {found['rms_percent']:.2f} % RMS, "
        f"largest {found['worst_percent']:+.1f} %"
    )
    for each in found["assumed"]:
        console.print(f"not published, {each}")


def _retold(found: Mapping[str, Any], console: Console) -> None:
    table = Table("step", "recorded (s)", "simulated (s)", box=None)
    for each in found["steps"]:
        table.add_row(str(each["step"]), f"{each['recorded']:.2f}", f"{each['simulated']:.2f}")
    console.print(table)
    settings = f" with {', '.join(found['settings'])}" if found["settings"] else ""
    calibrated = f"{found['run']}, calibrated on its first {found['calibrated_on']} steps"
    show(console, [paragraphs(f"{calibrated}, retold{settings}: mean staleness {found['staleness']:.3g}")])
    _errors("steps it was calibrated on", found["in_sample"], console)
    _errors("held-out steps after them", found["held_out"], console)
    if found["unseen"]:
        console.print(f"taken as 0 s, since none had passed by then: {', '.join(found['unseen'])}")


def _errors(what: str, part: Mapping[str, Any], console: Console) -> None:
    if part["steps"]:
        console.print(
            f"{part['steps']} {what}: {part['simulated_step_seconds']:.2f} s a step, recorded "
            f"{part['recorded_step_seconds']:.2f} s, {part['error_percent']:+.1f} %; a single step is "
            f"{part['step_error_percent']:.1f} % off on average"
        )
