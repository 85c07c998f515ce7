"""What tests are given to work with: a fresh copy of themselves and a place for a reward, both of this judgement only.

The copy is made beside the box, so that it can be shown without being writable; the reward is written in the box. Their
names cannot be guessed, so nothing that the agent left may wait for them; what the tests start is told both, since it
inherits their environment.
"""

import glob
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gyre.tasks.folder import Task

_MOST_BYTES = 64  # of a reward file
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # never through a link, never waiting for a pipe


@dataclass(frozen=True, slots=True)
class Desk:
    """Laid out for one judgement."""

    tests: Path
    instruction: Path
    reward: Path
    """Where the tests may write a number; its folder is there, it is not."""
    laid: Mapping[str, str]
    """SHA-256 of each file of the tests, by its path below `tests`."""

    @classmethod
    def lay(cls, task: Task, box: Path) -> "Desk":
        """Copy the tests and the instruction. Raises OSError."""
        name = f"judge-{secrets.token_hex(16)}"
        (box / name / "reward").mkdir(parents=True, mode=0o700)
        (box / name / "logs").mkdir()
        aside = box.with_name(f"{box.name}.{name}")
        # Links lead to places inside the task (it was refused otherwise), which are not copied: their files are.
        shutil.copytree(task.tests, aside / "tests", symlinks=False, ignore=_dangling)
        shutil.copyfile(task.instruction_file, aside / "instruction.md")
        files = sorted(path for path in (aside / "tests").rglob("*") if path.is_file())
        laid = {str(path.relative_to(aside / "tests")): _digest(path) for path in files}
        return cls(aside / "tests", aside / "instruction.md", box / name / "reward/reward.txt", laid)

    @staticmethod
    def asides(box: Path) -> tuple[Path, ...]:
        """What lies beside a box for its judgements: of one that is over, or whose evaluator died."""
        return tuple(box.parent.glob(f"{glob.escape(box.name)}.judge-*"))

    @property
    def logs(self) -> Path:
        """For what the tests say besides."""
        return self.reward.parents[1] / "logs"

    def disturbed(self) -> str:
        """A file of the tests that is not as it was laid out; "" when all are."""
        return next((name for name, digest in self.laid.items() if _digest(self.tests / name) != digest), "")

    def written(self) -> str | None:
        """What was written as the reward: its text, a word that is no number for what cannot be one, None: nothing."""
        try:
            with open(os.open(self.reward, _READ), "rb") as file:  # noqa: PTH123 - opened by its flags
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return "no regular file"
                body = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"unreadable: {error.strerror}"
        return body.decode(errors="replace").strip() if len(body) <= _MOST_BYTES else f"over {_MOST_BYTES} bytes"


def _dangling(folder: str, names: list[str]) -> set[str]:
    """Links to what is not there, which tests may hold as data of theirs."""
    return {name for name in names if not Path(folder, name).exists()}


def _digest(path: Path) -> str:
    """Of a file and its mode; "" for what is no file (any more)."""
    try:
        with open(os.open(path, _READ), "rb") as file:  # noqa: PTH123 - opened by its flags
            found = os.fstat(file.fileno())
            executable = b"x" if found.st_mode & 0o100 else b"-"
            return sha256(executable + file.read()).hexdigest() if stat.S_ISREG(found.st_mode) else ""
    except OSError:
        return ""
