"""How far long work is, told where stderr is a terminal and where it is none."""

import os
from io import StringIO

import pytest
from rich.console import Console

from services.telling import LINE_SECONDS, lines, telling


def test_a_file_gets_a_line_now_and_then() -> None:
    page, now = StringIO(), [0.0]
    shown = lines("scoring", Console(file=page), None, lambda: now[0])
    shown(0, 384)
    now[0] = LINE_SECONDS
    shown(12, 384)
    shown(13, 384, "x0-13")
    now[0] = 2 * LINE_SECONDS
    shown(24, 384)
    assert page.getvalue() == "scoring: 12 of 384\nscoring: 24 of 384\n"


def test_a_total_that_is_known_from_the_start_is_said_with_each() -> None:
    page, now = StringIO(), [0.0]
    shown = lines("reading the log", Console(file=page), 100, lambda: now[0])
    now[0] = LINE_SECONDS
    shown(50)
    assert page.getvalue() == "reading the log: 50 of 100\n"


def test_what_is_done_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with telling("scoring") as shown:
        shown(1, 1)
    assert capsys.readouterr().err == ""


def test_what_is_under_way_is_text_beside_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setitem(os.environ, "COLUMNS", "120")
    with telling("images") as shown:
        shown(1, 2, "step [1/2]\x1b[31m")
    assert "step [1/2]\\x1b[31m" in capsys.readouterr().err
