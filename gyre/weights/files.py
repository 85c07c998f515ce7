"""The transports that carry files: straight from the run folder, or by a carrier into files of the cell's own.

A cell keeps the last file that it was brought, also over its restarts: a delta changes that one.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from gyre.engines.port import Engine
from gyre.errors import GyreError
from gyre.trainers.checkpoint import file_digest, locate
from gyre.trainers.port import WeightsRefused
from gyre.weights.delta import apply_delta, make_delta, read_table
from gyre.weights.port import Give, Offered, WeightsUnavailable, WeightsUnusable, give
from schemas.refs import WeightsRef

log = logging.getLogger("gyre")


class Carrier(Protocol):
    """What moves files from the core to the other cells, by names that it does not look into."""

    async def put(self, file: Path, name: str) -> None:
        """The core's: have this file fetched under a name. OSError, WeightsUnavailable."""
        ...

    async def keep(self, names: Collection[str]) -> None:
        """The core's: nobody comes for the others any more."""
        ...

    async def fetch(self, name: str, into: Path) -> Path:
        """Where the file lies: `into`, or its own place.

        Raises:
            WeightsRefused: it will never come.
            WeightsUnavailable, OSError: it does not come now.
        """
        ...

    async def answer(self, question: bytes) -> bytes:
        """The core's: what a peer's `fetch` asks. GyreError."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class FromFolder:
    """Every cell reads the run folder."""

    def __init__(self, folder: Path, give: Give = give) -> None:
        """`folder`: the run's. `give`: how a cell gives its engine what it read."""
        self._folder, self._give = folder, give

    async def offer(self, weights: WeightsRef, base: WeightsRef | None) -> Offered:
        """See `Weights`: they lie there."""
        return Offered(weights.size)

    async def bring(self, engine: Engine, weights: WeightsRef, version: int, *, resume: bool) -> None:
        """See `Weights`."""
        await self._give(engine, await asyncio.to_thread(locate, self._folder, weights), version, resume=resume)

    async def answer(self, question: bytes) -> bytes:
        """See `Weights`: nothing is asked."""
        raise WeightsUnusable("weights.transport: cells of one run must have the same; this one reads the run folder")

    async def close(self) -> None:
        """See `Weights`."""


class Carried:
    """Files by a carrier, whole or as what changed.

    Args:
        carrier: what moves them.
        folder: the run's; the core's files lie there.
        own: folder for this cell's files.
        delta: whether changes are offered and asked for.
        core: whether this cell is the core, which fetches nothing.
        give: how a cell gives its engine what it was brought.
    """

    def __init__(
        self, carrier: Carrier, folder: Path, own: Path, *, delta: bool, core: bool, give: Give = give
    ) -> None:
        self._carrier, self._folder, self._own, self._give = carrier, folder, own, give
        self._delta, self._core = delta, core

    async def offer(self, weights: WeightsRef, base: WeightsRef | None) -> Offered:
        """See `Weights`."""
        file = await asyncio.to_thread(locate, self._folder, weights)
        names, offered = [whole_name(weights)], Offered(weights.size)
        if base is not None:
            names.append(whole_name(base))  # a cell that is late may still come for it
            if self._delta and base.digest != weights.digest:
                offered = await self._offer_delta(file, weights, base)
                names.append(delta_name(weights, base))
        try:
            await self._carrier.put(file, whole_name(weights))
            await self._carrier.keep(names)
        except (GyreError, OSError) as error:  # cells that find nothing take the run folder's
            log.warning("weights %s: not offered: %s", weights.digest[:12], error)
        return offered

    async def bring(self, engine: Engine, weights: WeightsRef, version: int, *, resume: bool) -> None:
        """See `Weights`."""
        await self._give(engine, await self._file(weights), version, resume=resume)

    async def answer(self, question: bytes) -> bytes:
        """See `Weights`."""
        return await self._carrier.answer(question)

    async def close(self) -> None:
        """See `Weights`."""
        await self._carrier.close()

    async def _offer_delta(self, file: Path, weights: WeightsRef, base: WeightsRef) -> Offered:
        try:
            delta, changed = await asyncio.to_thread(self._made, file, weights, base)
            await self._carrier.put(delta, delta_name(weights, base))
        except (GyreError, OSError) as error:  # whoever asks for it takes the whole file
            log.warning("weights %s: no delta: %s", weights.digest[:12], error)
            return Offered(weights.size)
        return Offered(min(delta.stat().st_size, weights.size), changed)

    def _made(self, file: Path, weights: WeightsRef, base: WeightsRef) -> tuple[Path, float]:
        """The delta and the share of values that it changes; one that a former core left is as good."""
        delta = deltas(self._folder) / delta_name(weights, base)
        delta.parent.mkdir(exist_ok=True)
        for other in set(delta.parent.glob("*")) - {delta}:
            other.unlink(missing_ok=True)
        with contextlib.suppress(WeightsUnusable):
            return delta, read_table(delta).share
        table = make_delta(locate(self._folder, base), file, (base.digest, weights.digest), delta)
        return delta, table.share

    async def _file(self, weights: WeightsRef) -> Path:
        """The weights in a file that is found to be theirs."""
        if self._core:
            return await asyncio.to_thread(locate, self._folder, weights)
        self._own.mkdir(parents=True, exist_ok=True)
        place = self._own / whole_name(weights)
        if not await asyncio.to_thread(_is, place, weights):
            await (self._changed(weights, place) if self._delta else self._whole(weights, place))
        await asyncio.to_thread(_forget_others, place)
        return place

    async def _changed(self, weights: WeightsRef, place: Path) -> None:
        """From the file that was brought before, else whole."""
        for base in self._own.glob("*.safetensors"):
            name = f"{weights.digest}-{base.stem}.delta"
            try:
                with tempfile.TemporaryDirectory(dir=self._own, prefix="fetching-") as folder:
                    delta = await self._carrier.fetch(name, Path(folder) / "delta")
                    await asyncio.to_thread(apply_delta, delta, base, weights.digest, place)
            except (GyreError, OSError) as error:
                log.warning("weights %s: the whole file is taken: %s", weights.digest[:12], error)
            else:
                return
        await self._whole(weights, place)

    async def _whole(self, weights: WeightsRef, place: Path) -> None:
        """By the carrier, else from the run folder if this cell sees it."""
        with tempfile.TemporaryDirectory(dir=self._own, prefix="fetching-") as name:
            came = Path(name) / "whole"
            try:
                found = await self._carrier.fetch(whole_name(weights), came)
                if not await asyncio.to_thread(_is, found, weights):
                    raise WeightsUnusable(f"what came is not the file of digest {weights.digest[:12]}")
            except (GyreError, OSError) as error:
                log.warning("weights %s: from the run folder: %s", weights.digest[:12], error)
                found = await asyncio.to_thread(in_folder, self._folder, weights, error)
            await asyncio.to_thread(_settle, found, came, place)


def in_folder(folder: Path, weights: WeightsRef, error: Exception) -> Path:
    """What the run folder has, else `error`, for which they came no other way: this host may not see that folder.

    Raises:
        WeightsRefused: they are damaged there, or that is what the error says.
    """
    try:
        return locate(folder, weights)
    except WeightsRefused:
        if isinstance(error, WeightsRefused) or (folder / weights.address).exists():
            raise
        raise error from None


def whole_name(weights: WeightsRef) -> str:
    """Of a version's file."""
    return f"{weights.digest}.safetensors"


def delta_name(weights: WeightsRef, base: WeightsRef) -> str:
    """Of what changed from one to the other."""
    return f"{weights.digest}-{base.digest}.delta"


def deltas(folder: Path) -> Path:
    """Where a run's core keeps them."""
    return folder / "deltas"


def _is(file: Path, weights: WeightsRef) -> bool:
    return file.is_file() and file.stat().st_size == weights.size and file_digest(file) == weights.digest


def _settle(found: Path, came: Path, place: Path) -> None:
    """Under its name: moved if it is ours, else another name of the same file, or a copy on another disk."""
    if found != came:
        came.unlink(missing_ok=True)
        try:
            os.link(found, came)
        except OSError:
            shutil.copyfile(found, came)
    came.replace(place)


def _forget_others(place: Path) -> None:
    """Older files, and what a process that died left."""
    for other in set(place.parent.glob("*")) - {place}:
        if other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
        else:
            other.unlink(missing_ok=True)


class Shared:
    """The carrier of a run folder that every cell sees: nothing moves."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the run's."""
        self._folder = folder

    async def put(self, file: Path, name: str) -> None:
        """See `Carrier`: it lies there."""

    async def keep(self, names: Collection[str]) -> None:
        """See `Carrier`: whole files are the run's own, and deltas go with the next one."""

    async def fetch(self, name: str, into: Path) -> Path:
        """See `Carrier`."""
        delta = name.endswith(".delta")
        place = (deltas(self._folder) if delta else self._folder / "weights") / name
        if not place.is_file():  # a whole file lies there before the log names it, and nowhere else
            raise (WeightsUnavailable if delta else WeightsRefused)(f"{place}: is not there")
        return place

    async def answer(self, question: bytes) -> bytes:
        """See `Carrier`: nothing is asked."""
        raise WeightsUnusable("weights.transport: cells of one run must have the same; this one reads the run folder")

    async def close(self) -> None:
        """See `Carrier`."""
