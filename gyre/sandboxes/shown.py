"""What a command in a container finds there: folders of ours, and variables."""

from pathlib import Path

from gyre.sandboxes.orphans import MARK
from gyre.sandboxes.port import Command, SandboxError


def outermost(command: Command, visible: tuple[Path, ...], hidden: Path | None = None) -> list[Path]:
    """All that a command may read, each once, without what lies in another one or in its box.

    `hidden` is covered where it lies in something visible: what is visible in it stands by itself.

    Raises:
        SandboxError: the command's folder is not among them.
    """
    wanted = dict.fromkeys((*visible, *command.visible))
    others = (command.box, *wanted)
    if not any(command.folder.is_relative_to(path) for path in others):
        raise SandboxError(f"folder {command.folder}: lies neither in {command.box} nor in what is visible")

    def within(path: Path, other: Path) -> bool:
        veil = hidden is not None and path.is_relative_to(hidden) and not other.is_relative_to(hidden)
        return path != other and path.is_relative_to(other) and not veil

    return [path for path in wanted if not any(within(path, other) for other in others)]


def veiled(hidden: Path | None, shown: list[Path]) -> bool:
    """Whether a folder that is never shown as a whole has to be covered, since it lies in something that is shown."""
    return hidden is not None and any(hidden.is_relative_to(path) for path in shown)


def environment(command: Command) -> dict[str, str]:
    """Its variables, besides those of its image."""
    private = {"HOME": str(command.box / "home"), "TMPDIR": str(command.box / "tmp"), MARK: str(command.box)}
    return {"LANG": "C.UTF-8", **command.environment, **private}
