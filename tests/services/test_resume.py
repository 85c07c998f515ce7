"""What a resumed run may change, and which errors say that there is no room."""

import errno

import pytest

from bus.errors import DiskFull, ServerFailed, StreamFull
from bus.room import Room
from gyre.errors import ConfigError
from services.exits import RunFull, is_full
from services.setup import asked_bytes


def test_only_the_size_of_the_log_may_be_changed_once_a_run_has_begun() -> None:
    assert asked_bytes([]) is None
    assert asked_bytes(["bus.max_bytes=2097152"]) == 2097152


@pytest.mark.parametrize("override", ["run.steps=9", "bus.url=nats://127.0.0.1:1", "bus=3", "bus.max_bytes=2.5"])
def test_whatever_else_is_asked_of_a_resumed_run_is_refused_by_name(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]) as refusal:
        asked_bytes([override])
    assert "\n" not in str(refusal.value)


def test_a_size_beside_another_change_is_refused_as_a_whole() -> None:
    with pytest.raises(ConfigError, match=r"stays as it was, but for bus.max_bytes"):
        asked_bytes(["bus.max_bytes=2097152", "run.steps=9"])


@pytest.mark.parametrize(("used", "short"), [(0, False), (15 << 20, False), ((15 << 20) + 1, True), (16 << 20, True)])
def test_room_is_short_in_the_last_sixteenth(used: int, short: bool) -> None:
    assert Room("EV_r", used, 16 << 20).is_short is short


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (StreamFull("full"), True),
        (DiskFull("full"), True),
        (ServerFailed("port 1: in use"), False),
        (RunFull("full"), True),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (None, False),
    ],
)
def test_what_says_that_there_is_no_room(error: Exception | None, full: bool) -> None:
    assert is_full(error) is full
