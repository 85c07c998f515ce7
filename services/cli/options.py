"""Arguments and options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Argument(help="Name of a run, or path of an archive.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one field; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
EndJson = Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout.")]
