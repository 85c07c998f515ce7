"""Content-addressed files: written once, durable, verified when read."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bus.blobs import BlobCorrupt, BlobMissing, Blobs
from schemas.refs import BlobRef, StateRef

BODY = b"a body \x00 of any bytes" * 1000


def test_a_body_comes_back_by_its_claim_check(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    reference = blobs.put(BODY)
    assert reference.digest == hashlib.sha256(BODY).hexdigest()
    assert (reference.size, reference.address) == (len(BODY), f"blob:{reference.digest}")
    assert blobs.get(reference) == BODY
    assert blobs.get(StateRef(digest=reference.digest, size=reference.size, address=reference.address)) == BODY


def test_the_empty_body_is_a_body(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    assert blobs.get(blobs.put(b"")) == b""


def test_another_process_opens_the_same_store(tmp_path: Path) -> None:
    reference = Blobs(tmp_path).put(BODY)
    assert Blobs(tmp_path).get(reference) == BODY
    assert list(Blobs(tmp_path).digests()) == [reference.digest]


def test_putting_twice_writes_once(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    reference = blobs.put(BODY)
    before = blobs.path(reference.digest).stat().st_ino
    assert blobs.put(BODY) == reference
    assert blobs.path(reference.digest).stat().st_ino == before


def test_a_changed_byte_is_found_when_read_and_mended_when_put_again(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    reference = blobs.put(BODY)
    path = blobs.path(reference.digest)
    path.write_bytes(b"X" + BODY[1:])
    with pytest.raises(BlobCorrupt, match=reference.digest):
        blobs.get(reference)
    blobs.put(BODY)
    assert blobs.get(reference) == BODY


def test_a_truncated_file_is_found(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    reference = blobs.put(BODY)
    os.truncate(blobs.path(reference.digest), 10)
    with pytest.raises(BlobCorrupt):
        blobs.get(reference)


def test_a_claim_check_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    reference = blobs.put(BODY)
    with pytest.raises(BlobCorrupt, match="of its name"):
        blobs.get(BlobRef(digest=reference.digest, size=1, address=reference.address))


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    absent = hashlib.sha256(b"never put").hexdigest()
    with pytest.raises(BlobMissing, match=absent) as caught:
        Blobs(tmp_path).get(BlobRef(digest=absent, size=9, address=f"blob:{absent}"))
    assert caught.value.digest == absent
    assert not Blobs(tmp_path).has(absent)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, "/" + "0" * 63])
def test_what_is_no_digest_never_becomes_a_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(ValueError, match="hex digits"):
        Blobs(tmp_path).path(digest)


def test_writers_that_race_leave_one_whole_file_and_no_scraps(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        references = set(pool.map(lambda _: blobs.put(BODY), range(16)))
    assert len(references) == 1
    assert blobs.get(references.pop()) == BODY
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Blobs(tmp_path).put(BODY)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
