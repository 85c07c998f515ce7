"""A checkpoint of several files as one thing with one digest: a folder whose manifest names every file in it.

The folder is filled aside; its files are flushed to disk, then the manifest, then the folder is renamed to the digest
of the manifest: a crash leaves the whole checkpoint or none. Files are digested by whoever wrote them, so that no
process has to read all of them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gyre.trainers.checkpoint import file_digest, flush
from gyre.trainers.port import WeightsRefused
from schemas.refs import WeightsRef

NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is on disk."""

    size: int
    """Bytes."""
    digest: str
    """SHA-256 of its content, lower-case hex."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says about itself."""

    sequence: int
    """Position in the run's log up to which the core had read when it saved."""
    updates: int
    """Optimizer updates that the state has seen."""
    model: str
    """Digest of the parameters' names and shapes."""
    files: Mapping[str, Written]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files.values())

    def encoded(self) -> bytes:
        """Always the same bytes for the same checkpoint."""
        return json.dumps(asdict(self), sort_keys=True, indent=1).encode()

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Of a checkpoint's folder; raises `WeightsRefused`."""
        try:
            found: dict[str, Any] = json.loads((folder / NAME).read_bytes())
            files = {name: Written(**each) for name, each in found.pop("files").items()}
            return cls(files=files, **found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise WeightsRefused(f"{folder}: no readable checkpoint: {NAME}: {error}") from error

    def check(self, folder: Path, names: Collection[str] | None = None) -> None:
        """Read these of its files (all by default) and hold them against their digests; raises `WeightsRefused`."""
        for name in self.files if names is None else names:
            path = folder / name
            if not path.is_file():
                raise WeightsRefused(f"{path}: missing; restore it from a copy of the run folder")
            found = file_digest(path)
            if found != self.files[name].digest:
                digests = f"digest {found[:12]}, the manifest says {self.files[name].digest[:12]}"
                raise WeightsRefused(f"{path}: {digests}: the file is damaged")


def written(folder: Path, names: Collection[str]) -> dict[str, Written]:
    """Flush these files of a folder to disk, and what is in them."""
    for each in names:
        flush(folder / each)
    return {each: Written((folder / each).stat().st_size, file_digest(folder / each)) for each in names}


def seal(aside: Path, manifest: Manifest) -> WeightsRef:
    """Make a filled folder the checkpoint that it is; it is on disk when this returns.

    Args:
        aside: beside its place, which is `<parent>/<digest of the manifest>`; the files in it are on disk.
        manifest: names all of them.
    Raises:
        OSError: the disk is full or not writable; the folder is still aside.
    """
    body = manifest.encoded()
    digest = hashlib.sha256(body).hexdigest()
    (aside / NAME).write_bytes(body)
    flush(aside / NAME)
    flush(aside)
    place = aside.with_name(digest)
    if place.exists() and not _whole(place):  # what a crash left of one that was deleted
        shutil.rmtree(place)
    if place.exists():
        shutil.rmtree(aside)
    else:
        os.replace(aside, place)
    flush(place.parent)
    return WeightsRef(digest=digest, size=manifest.size, address=f"{place.parent.name}/{digest}")


def check_folder(folder: Path, reference: WeightsRef) -> None:
    """Hold a checkpoint's manifest against its reference, and its files' sizes; raises `WeightsRefused`.

    Not their content: that is for those who read them.
    """
    manifest = Manifest.read(folder)
    found = file_digest(folder / NAME)
    if found != reference.digest:
        digests = f"digest {found[:12]}, the log says {reference.digest[:12]}"
        raise WeightsRefused(f"{folder / NAME}: {digests}: the file is damaged")
    for name, each in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise WeightsRefused(f"{path}: missing; restore it from a copy of the run folder")
        if path.stat().st_size != each.size:
            sizes = f"{path.stat().st_size} bytes, the manifest says {each.size}"
            raise WeightsRefused(f"{path}: {sizes}: the file is damaged")


def _whole(folder: Path) -> bool:
    try:
        Manifest.read(folder).check(folder)
    except WeightsRefused:
        return False
    return True
