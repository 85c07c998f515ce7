"""Archives from strangers: nothing in a file is trusted, and what is wrong is one line."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from bus.archive import import_run
from bus.archive_file import ArchiveError, ArchiveLimits, Footer, read_lines
from bus.archive_log import open_archive
from bus.server import NatsServer

Lines = list[dict[str, Any]]


def write_lines(path: Path, lines: Lines, *, seal: bool = True) -> None:
    """A file with these lines; sealed with a right footer, so that only what a test breaks is wrong."""
    texts = [json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines]
    if seal:
        count = {kind: sum(line.get(kind[0]) == kind[1] for line in lines) for kind in COUNTED}
        footer = Footer(
            ev=count["stream", "EV"],
            call=count["stream", "CALL"],
            blobs=count["kind", "blob"],
            missing=(),
            digest=hashlib.sha256(b"".join(texts)).hexdigest(),
        )
        texts.append(footer.model_dump_json().encode() + b"\n")
    path.write_bytes(zstandard.compress(b"".join(texts)))


COUNTED = (("stream", "EV"), ("stream", "CALL"), ("kind", "blob"))
HEADER: dict[str, Any] = {"kind": "header", "format": "gyre-archive", "v": 1, "run": "r"}


def message(sequence: int, stream: str = "EV", **other: Any) -> dict[str, Any]:
    subject = "ev.r.tester.x" if stream == "EV" else "call.r.x"
    said = {"kind": "message", "stream": stream, "sequence": sequence, "subject": subject, "text": "{}", "base64": None}
    return {**said, **other}


def blob(digest: str = hashlib.sha256(b"body").hexdigest()) -> dict[str, Any]:
    return {"kind": "blob", "digest": digest, "body": "Ym9keQ=="}


def refused(path: Path, limits: ArchiveLimits | None = None) -> str:
    with pytest.raises(ArchiveError) as caught:
        list(read_lines(path, limits))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return caught.value.problem


def test_the_lines_that_hostile_files_are_made_from_are_good(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [HEADER, message(1), message(2), message(1, "CALL"), blob()])
    assert len(list(read_lines(tmp_path / "a"))) == 6


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "first line"),
        ([message(1)], "first line"),
        ([HEADER, HEADER], "first line"),
        ([{**HEADER, "v": 3}], "line 1: .*v"),
        ([{**HEADER, "v": 2}], "a line goes on|no index|another frame"),
        ([{**HEADER, "format": "tar"}], "format"),
        ([{**HEADER, "run": "../../etc"}], "run"),
        ([{**HEADER, "extra": 1}], "extra"),
        ([{"kind": "symlink", "to": "/etc/passwd"}], "kind|symlink"),
        ([HEADER, message(2)], "sequence 2 of EV follows 0"),
        ([HEADER, message(1), message(1)], "sequence 1 of EV follows 1"),
        ([HEADER, message(1, "CALL"), message(1)], "order"),
        ([HEADER, blob(), message(1)], "order"),
        ([HEADER, message(1, text=None)], "either"),
        ([HEADER, message(1, base64="AA==")], "either"),
        ([HEADER, message(1, text=None, base64="!")], "base64"),
        ([HEADER, message(1, subject="ev.other.tester.x")], "not in EV of run r"),
        ([HEADER, message(1, subject="call.r.x")], "not in EV of run r"),
        ([HEADER, message(1, subject="ev.r.tester.>")], "subject"),
        ([HEADER, message(1, subject="$JS.API.STREAM.DELETE.EV_r")], "subject"),
        ([HEADER, message(1, subject="ev.r.tester.a\r\nPUB x")], "subject"),
        ([HEADER, blob("0" * 64)], "its bytes are others"),
        ([HEADER, blob("../../../etc/cron.d/x")], "digest"),
        ([HEADER, blob(), blob()], "each once"),
    ],
)
def test_a_line_that_may_not_stand_there_is_refused(tmp_path: Path, lines: Lines, problem: str) -> None:
    write_lines(tmp_path / "a", lines)
    with pytest.raises(ArchiveError, match=problem):
        list(read_lines(tmp_path / "a"))
    refused(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ev": 2}, "counts"),
        ({"blobs": 1}, "counts"),
        ({"digest": "0" * 64}, "footer's digest"),
    ],
)
def test_a_footer_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    lines = [HEADER, message(1)]
    texts = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    footer = {"kind": "footer", "ev": 1, "call": 0, "blobs": 0, "missing": []}
    footer = {**footer, "digest": hashlib.sha256(texts).hexdigest(), **change}
    write_lines(tmp_path / "a", [*lines, footer], seal=False)
    assert problem in refused(tmp_path / "a")


def test_nothing_may_follow_the_footer(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [HEADER])
    more = zstandard.compress(json.dumps(message(1)).encode() + b"\n")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes() + more)
    assert "follow the footer" in refused(tmp_path / "a")


def test_bytes_after_the_end_are_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [HEADER])
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes() + b"PK\x03\x04 appended")
    assert "damaged" in refused(tmp_path / "a")


def test_an_archive_without_a_footer_is_truncated(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [HEADER, message(1)], seal=False)
    assert "truncated" in refused(tmp_path / "a")


@pytest.mark.parametrize("content", [b"", b"\x00" * 4096, b"PK\x03\x04", b'{"kind":"header"}\n', os.urandom(4096)])
def test_what_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    assert refused(tmp_path / "a")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "absent")
    assert "cannot be read" in refused(tmp_path)


def bomb(path: Path, text: Callable[[zstandard.ZstdCompressionWriter], None]) -> None:
    with path.open("wb") as file, zstandard.ZstdCompressor(level=19).stream_writer(file) as out:
        text(out)


def test_a_line_that_never_ends_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    def text(out: zstandard.ZstdCompressionWriter) -> None:
        for _ in range(50):
            out.write(b"a" * (1 << 20))

    bomb(tmp_path / "a", text)
    assert "line is longer than 1048576" in refused(tmp_path / "a", ArchiveLimits(line_bytes=1 << 20))


def test_a_file_that_expands_out_of_proportion_is_refused(tmp_path: Path) -> None:
    def text(out: zstandard.ZstdCompressionWriter) -> None:
        out.write(json.dumps(HEADER).encode() + b"\n")
        padding = json.dumps(message(1, text="a" * (1 << 20))).encode() + b"\n"
        for number in range(80):
            out.write(padding.replace(b'"sequence": 1', f'"sequence": {number + 1}'.encode()))

    bomb(tmp_path / "a", text)
    assert (tmp_path / "a").stat().st_size < 80_000
    assert "more than 500-fold" in refused(tmp_path / "a", ArchiveLimits(ratio=500))
    assert "expands to more than 1000000" in refused(tmp_path / "a", ArchiveLimits(total_bytes=1_000_000))


def test_a_window_that_would_take_gigabytes_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=31, compression_level=1)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with (tmp_path / "a").open("wb") as file, compressor.stream_writer(file) as out:
        out.write(b"a" * 1000)
    assert "damaged" in refused(tmp_path / "a")


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(zstandard.compress(b"[" * 1_000_000 + b"\n"))
    assert "line 1" in refused(tmp_path / "a")


async def test_a_bad_archive_leaves_no_trace_when_imported(server: NatsServer, tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [HEADER, message(1), blob()], seal=False)
    with pytest.raises(ArchiveError, match="truncated"):
        await import_run(server.url, tmp_path / "a", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_unpacking_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    write_lines(tmp_path / "a", [HEADER, message(1), blob()])
    with open_archive(tmp_path / "a"):
        assert list((tmp_path / "temporary").iterdir())
    assert list((tmp_path / "temporary").iterdir()) == []
    write_lines(tmp_path / "a", [HEADER, message(2)])
    with pytest.raises(ArchiveError), open_archive(tmp_path / "a"):
        pass
    assert list((tmp_path / "temporary").iterdir()) == []
