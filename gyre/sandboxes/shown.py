"""What a command in a container finds there: folders of ours, and variables."""

from pathlib import Path

from gyre.sandboxes.orphans import MARK
from gyre.sandboxes.port import Command, SandboxError


def outermost(command: Command, visible: tuple[Path, ...]) -> list[Path]:
    """All that a command may read, each once, without what lies in another one or in its box.

    Raises:
        SandboxError: its folder is not among them.
    """
    wanted = dict.fromkeys((*visible, *command.visible))
    others = (command.box, *wanted)
    if not any(command.folder.is_relative_to(path) for path in others):
        raise SandboxError(f"folder {command.folder}: lies neither in {command.box} nor in what is visible")
    return [path for path in wanted if not any(path != each and path.is_relative_to(each) for each in others)]


def environment(command: Command) -> dict[str, str]:
    """Its variables, besides those of its image."""
    private = {"HOME": str(command.box / "home"), "TMPDIR": str(command.box / "tmp"), MARK: str(command.box)}
    return {"LANG": "C.UTF-8", **command.environment, **private}
