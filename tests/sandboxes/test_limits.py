"""What [sandbox] says of limits is what a command is held to; what makes no sense is refused before anything starts."""

from dataclasses import fields
from pathlib import Path

import pytest

from gyre.config import Config
from gyre.config_sandbox import SandboxSection
from gyre.errors import ConfigError
from gyre.sandboxes.make import limits_of
from gyre.sandboxes.port import Limits
from tests.sandboxes.stand import make

GIVEN = {"memory_mb": 128, "disk_mb": 3, "file_mb": 2, "output_mb": 1, "files": 5, "open_files": 60, "processes": 70}


def test_every_limit_comes_from_the_configuration() -> None:
    assert limits_of(SandboxSection(cpus=1.5, **GIVEN)) == Limits(
        memory_bytes=128 << 20, disk_bytes=3 << 20, file_bytes=2 << 20, output_bytes=1 << 20,
        files=5, open_files=60, processes=70, cpus=1.5,
    )  # fmt: skip
    assert limits_of(SandboxSection()) == Limits()
    not_asked = {"look_seconds"}
    assert {field.name for field in fields(Limits)} - not_asked == {
        *(name.replace("_mb", "_bytes") for name in GIVEN), "cpus"
    }  # fmt: skip


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1 GB", "nan", "true", "", str(1 << 60)])
@pytest.mark.parametrize("name", ["output_mb", "memory_mb", "disk_mb", "file_mb"])
def test_what_is_no_number_of_megabytes_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"sandbox\.{name}"):
        Config.load(
            None, [f'sandbox.{name}="{value}"' if not value.lstrip("-").isdigit() else f"sandbox.{name}={value}"]
        )


def test_a_run_from_before_there_was_a_choice_may_write_what_it_could() -> None:
    table = Config.load(None).table()
    del table["sandbox"]["output_mb"]
    assert limits_of(Config.recorded(table).sandbox).output_bytes == 1 << 30


@pytest.mark.parametrize("kind", ["process", "bubblewrap", "docker"])
async def test_more_output_than_configured_ends_a_command_and_says_so(tmp_path: Path, kind: str) -> None:
    stand = make(kind, limits_of(SandboxSection(output_mb=1, memory_mb=128)))
    ended = await stand.sandbox.run(stand.command(tmp_path / "box", "while True: print('x' * 65536)"))
    await stand.sandbox.close()
    assert (ended.ending, ended.reason) == ("output", "ended because it wrote more than 1 MB of output"), ended
