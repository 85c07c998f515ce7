"""Weights and optimizer state as files named by their digest, durable before anyone hears of them.

A file is written aside, flushed to disk, renamed, and the folder is flushed: a crash leaves the whole file or none.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gyre.trainers.port import WeightsRefused
from schemas.refs import WeightsRef

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["weights", "optimizer"]
METADATA = {"format": "pt"}
_PIECE = 1 << 22
"""Numbers that are converted at a time."""


def save_tensors(tensors: Mapping[str, "Tensor"], folder: Path, kind: Kind) -> WeightsRef:
    """Write `<folder>/<kind>/<digest>.safetensors`; it is on disk when this returns.

    Args:
        tensors: contiguous and on the CPU; the same ones always give the same digest.
        folder: the run folder, which the address in the reference is relative to.
        kind: the folder in it.
    Raises:
        OSError: the disk is full or not writable; nothing stays behind.
    """
    from safetensors.torch import save_file

    return place_file(lambda aside: save_file(dict(tensors), aside, metadata=METADATA), folder, kind)


def save_float32(tensors: Mapping[str, "Tensor"], folder: Path, kind: Kind) -> WeightsRef:
    """As `save_tensors`, of what the tensors are in float32, some megabytes at a time: they may be mapped files."""
    return place_file(partial(_write_float32, tensors), folder, kind)


def _write_float32(tensors: Mapping[str, "Tensor"], path: Path) -> None:
    """To the byte what the library writes: a header of names in order, then the numbers in that order."""
    from torch import float32, split

    header: dict[str, Any] = {"__metadata__": METADATA}
    ordered, end = sorted(tensors.items()), 0
    for name, tensor in ordered:
        begin, end = end, end + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            for piece in split(tensor.reshape(-1), _PIECE):
                file.write(piece.to(float32).numpy().tobytes())


def place_file(write: Callable[[Path], object], folder: Path, kind: Kind) -> WeightsRef:
    """As `save_tensors`, of a safetensors file that `write` makes at the path that it is given."""
    from safetensors import SafetensorError

    home = folder / kind
    home.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".tmp", dir=home)
    os.close(handle)
    aside = Path(name)
    try:
        write(aside)
        flush(aside)
        digest = file_digest(aside)
        place = home / f"{digest}.safetensors"
        os.replace(aside, place)
    except SafetensorError as error:
        raise _system_error(error, home) from error
    finally:
        aside.unlink(missing_ok=True)
    flush(home)
    return WeightsRef(digest=digest, size=place.stat().st_size, address=f"{kind}/{place.name}")


def _system_error(error: Exception, place: Path) -> OSError:
    """What the system said, which the library only puts into words: a full disk must be told from a defect."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(place)) if number else OSError(f"{place}: {error}")


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """Read a safetensors file; raises `WeightsRefused` if it is missing, damaged or a folder of another format."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.is_dir():
        rule = 'go on with trainer.kind = "megatron"; trainer.checkpoint = "whole" saves what every kind reads'
        raise WeightsRefused(f"{path}: Megatron's distributed format: {rule}")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsRefused(f"{path}: not a readable safetensors file ({error})") from error
    return tensors


def locate(folder: Path, reference: WeightsRef) -> Path:
    """The file behind a reference, once its size and digest are found true; raises `WeightsRefused` otherwise.

    Of a folder (`gyre.trainers.manifest`) its manifest and its files' sizes.
    """
    from gyre.trainers.manifest import check_folder

    path = folder / reference.address
    if not path.resolve().is_relative_to(folder.resolve()):
        raise WeightsRefused(f"address = {reference.address!r}: leads out of the run folder {folder}")
    if path.is_dir():
        check_folder(path, reference)
        return path
    if not path.is_file():
        raise WeightsRefused(f"{path}: missing; restore it from a copy of the run folder")
    size = path.stat().st_size
    if size != reference.size:
        raise WeightsRefused(f"{path}: {size} bytes, the log says {reference.size}: the file is damaged")
    found = file_digest(path)
    if found != reference.digest:
        raise WeightsRefused(f"{path}: digest {found[:12]}, the log says {reference.digest[:12]}: the file is damaged")
    return path


def spare(folder: Path, keep: Collection[WeightsRef]) -> tuple[Path, ...]:
    """Weights and optimizer files and folders that `keep` does not name, and what crashed writes left.

    For the core alone, between two saves. Other folders and other kinds of files are left out.
    """
    kept = {(folder / each.address).resolve() for each in keep}
    found = [each for kind in ("weights", "optimizer") for each in (folder / kind).glob("*")]
    return tuple(each for each in found if _ours(each) and each.resolve() not in kept)


def prune(found: Collection[Path]) -> None:
    """Delete what was spare."""
    for each in found:
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)


def _ours(path: Path) -> bool:
    return path.suffix in {".safetensors", ".tmp"} or re.fullmatch("[0-9a-f]{64}", path.name) is not None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Have a file's content, or a folder's names, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
