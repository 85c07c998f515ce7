"""Commits to stored bytes and back, with the claim check: a body over 256 KiB lies in the blob store.

A stub is `{"blob": BlobRef, "commit": id}`; the blob holds the whole commit's JSON, so that what is read back is byte
for byte what a small commit would have been.
"""

import orjson
from pydantic import ValidationError

from bus.blobs import BlobError, Blobs
from bus.log import Stored
from schemas.envelope import COMMIT, Commit
from schemas.refs import BlobRef
from schemas.upcast import Malformed, first_line, load, refuse_misplaced

CLAIM_CHECK_BYTES = 256 * 1024
_STUB = b'{"blob":'


def encode(commit: Commit, blobs: Blobs) -> bytes:
    """The bytes to store; a large body is put into the blob store first (blocking file I/O)."""
    body = COMMIT.dump_json(commit)
    return body if len(body) <= CLAIM_CHECK_BYTES else stub(commit.commit, body, blobs)


def stub(commit_id: str, body: bytes, blobs: Blobs) -> bytes:
    """Put a body into the blob store and return what is stored in its place."""
    return _STUB + blobs.put(body).model_dump_json().encode() + b',"commit":' + orjson.dumps(commit_id) + b"}"


def is_stub(data: bytes) -> bool:
    """Whether these stored bytes stand for a blob (reading them needs file I/O)."""
    return data.startswith(_STUB)


def body_of(data: bytes, blobs: Blobs) -> bytes:
    """The commit's JSON: stored bytes, or what they stand for. Raises `Malformed`: that cannot be had."""
    if not is_stub(data):
        return data
    try:
        return blobs.get(BlobRef.model_validate(orjson.loads(data)["blob"]))
    except ValidationError as error:
        raise Malformed(f"stub: {first_line(error)}") from error
    except (BlobError, KeyError, ValueError) as error:
        raise Malformed(" ".join(str(error).split())) from error


def decode(sequence: int, subject: str, data: bytes, blobs: Blobs) -> Stored:
    """Read stored bytes; total: what is no commit, or may not stand there, becomes a `Stored` with a reason."""
    try:
        commit = load(body_of(data, blobs))
        refuse_misplaced(subject, commit.run, commit.producer.service)
    except Malformed as error:
        return Stored(sequence, subject, None, error.reason)
    return Stored(sequence, subject, commit)


def commit_id(data: bytes) -> str:
    """The id in stored bytes, stub or not; "" where there is none."""
    try:
        found = orjson.loads(data)["commit"]
    except (KeyError, TypeError, ValueError):
        return ""
    return found if isinstance(found, str) else ""
