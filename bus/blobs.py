"""Content-addressed files: bodies too large for the log lie here, named by their SHA-256.

A blob is written once and never changes: it is synced to disk under a private name and then renamed, so that a
reader sees all of it or nothing, and a power cut leaves no half. Reading verifies the digest. Calls are synchronous;
a shell that must not block runs them in a thread.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bus.errors import Refused
from schemas.refs import BlobRef

SCHEME = "blob:"


class BlobError(Refused):
    """A blob cannot be had; attributes carry its digest."""

    def __init__(self, digest: str, message: str) -> None:
        """Keep the digest beside the message."""
        super().__init__(message)
        self.digest = digest


class BlobMissing(BlobError):
    """No blob of this digest lies in the store: it was pruned, or the store is another run's."""


class BlobCorrupt(BlobError):
    """The stored bytes are not the ones that the digest names: restore the file, it cannot be read around."""


class Reference(Protocol):
    """What a claim check says: `BlobRef` and `StateRef` are such."""

    @property
    def digest(self) -> str:
        """SHA-256, lower-case hex."""

    @property
    def size(self) -> int:
        """Bytes."""


class Blobs:
    """The blob store of one run: a folder of files named by digest."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        """Use this folder, made when the first blob is put; not `durable` for a copy that may be lost."""
        self.folder, self._durable = folder, durable

    def put(self, body: bytes) -> BlobRef:
        """Store a body durably and return its claim check; putting it again mends a damaged file."""
        digest = hashlib.sha256(body).hexdigest()
        if self._read(digest) != body:
            self._write(digest, body)
        if self._durable:
            sync_folder(self.path(digest).parent)  # also when another writer's rename is still only in memory
        return BlobRef(digest=digest, size=len(body), address=SCHEME + digest)

    def get(self, reference: Reference) -> bytes:
        """The referenced body; `BlobMissing`, or `BlobCorrupt` where bytes, digest and size do not agree."""
        digest = reference.digest
        body = self._read(digest)
        if body is None:
            raise BlobMissing(digest, f"blob {digest} is not in {self.folder}: import the run's archive or restore it")
        if len(body) != reference.size or hashlib.sha256(body).hexdigest() != digest:
            raise BlobCorrupt(
                digest,
                f"blob {digest} in {self.folder}: its {len(body)} bytes are not the {reference.size} of its name",
            )
        return body

    def has(self, digest: str) -> bool:
        """Whether a blob of this digest lies here (its bytes are verified when it is read)."""
        return self.path(digest).is_file()

    def path(self, digest: str) -> Path:
        """Where the blob of this digest lies or would lie; `ValueError` for what is no digest."""
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):  # noqa: PLR2004 (hex digits of a SHA-256)
            raise ValueError(f"digest {digest[:80]!r} is not 64 lower-case hex digits")
        return self.folder / digest[:2] / digest

    def digests(self) -> Iterator[str]:
        """Every stored digest, in order."""
        return (path.name for path in sorted(self.folder.glob("[0-9a-f][0-9a-f]/*")) if len(path.name) == 64)  # noqa: PLR2004

    def _read(self, digest: str) -> bytes | None:
        try:
            return self.path(digest).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, digest: str, body: bytes) -> None:
        path = self.path(digest)
        new = not path.parent.is_dir()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix="new-", delete=False) as file:
            try:
                file.write(body)
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        if new and self._durable:
            sync_folder(self.folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a rename is on disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
