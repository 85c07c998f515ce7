"""Which runs there are, and those that somebody looks at: followed while they are, and a few for a while after."""

import asyncio
import contextlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

from gyre.errors import GyreError
from services.dashboard.watch import Watch
from services.place import NOTE

OPEN_MOST = 4
"""Runs that are followed at a time; beyond it, those are let go that nobody looks at, the longest unasked first."""
LISTED = 500


class UnknownRun(GyreError):
    """No such run here."""


class Runs:
    """The runs of a folder, one of them, or an archive."""

    def __init__(self, target: str | None, folder: Path) -> None:
        """`target`: a run's name, the path of an archive or of a folder of runs; None: the folder `folder`.

        Raises:
            UnknownRun: it is nothing of this.
        """
        path = Path(target) if target is not None else folder
        self._one: str | None = None
        self._folder = folder
        if target is not None and path.is_file():
            self._targets = {path.name.removesuffix(".jsonl.zst"): str(path)}
            self._one = next(iter(self._targets))
        elif target is not None and (folder / target / NOTE).is_file():
            self._targets, self._one = {target: target}, target
        elif path.is_dir() or target is None:
            self._folder, self._targets = path, {}
        else:
            raise UnknownRun(f"{target}: neither an archive, nor a folder of runs, nor a run in {folder}")
        self._open: OrderedDict[str, tuple[Watch, asyncio.Task[None]]] = OrderedDict()

    def listed(self) -> list[dict[str, Any]]:
        """Name, whether it has its archive, and when it was begun; the newest first."""
        if self._one is not None:
            return [{"run": self._one, "finished": None, "began": None}]
        began = dict[Path, float]()
        for note in self._folder.glob(f"*/{NOTE}"):
            with contextlib.suppress(FileNotFoundError):  # removed just now
                began[note.parent] = note.stat().st_mtime
        newest = sorted(began, key=began.__getitem__, reverse=True)[:LISTED]
        return [
            {"run": run.name, "finished": (run / f"{run.name}.jsonl.zst").is_file(), "began": began[run]}
            for run in newest
        ]

    def watch(self, name: str) -> Watch:
        """The run, followed from now on; anew where following it has ended. Raises `UnknownRun`."""
        watch, task = self._open.get(name, (None, None))
        if watch is not None and task is not None and not task.done():
            self._open.move_to_end(name)
            return watch
        self._open.pop(name, None)
        watch = Watch(self._target(name), self._folder)
        self._open[name] = watch, watch.begin()
        self._let_go(name)
        return watch

    def _let_go(self, kept: str) -> None:
        """Of those that nobody looks at, the ones that are too many."""
        idle = [name for name, (watch, _) in self._open.items() if not watch.viewers and name != kept]
        for name in idle[: max(0, len(self._open) - OPEN_MOST)]:
            self._open.pop(name)[1].cancel()

    async def close(self) -> None:
        """Let all go."""
        tasks = [task for _, task in self._open.values()]
        self._open.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _target(self, name: str) -> str:
        if self._one is not None:
            if name == self._one:
                return self._targets[name]
        elif name in {each["run"] for each in self.listed()}:
            return name
        raise UnknownRun(f"run {name[:80]}: not here; `gyre runs` lists them")
