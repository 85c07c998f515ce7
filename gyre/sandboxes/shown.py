"""What a command is shown of this machine, under which names, and what is covered there; variables in a container."""

from collections.abc import Iterable
from pathlib import Path

from gyre.sandboxes.orphans import MARK
from gyre.sandboxes.port import Command, SandboxError


def laid_out(wanted: Iterable[Path], hidden: Path | None, there: Iterable[Path] = ()) -> dict[Path, bool]:
    """Names in the order in which they are mounted, outermost first: True for what is shown, False for a veil.

    Whatever leads to `hidden` gets a veil over it, under that name: a link may lead to a folder above it. What is
    wanted below a veil is shown again; what else lies in something that is shown needs no mount.

    Args:
        wanted: what may be read, each under its name here.
        hidden: never shown as a whole.
        there: what the command sees already, each under its own name, not a link's.
    """
    whole = hidden.resolve() if hidden is not None else None
    seen: dict[Path, bool] = {}
    first = tuple(there)
    for path in (*first, *sorted(set(wanted), key=lambda path: (len(path.parts), path))):
        around = next((each for each in (path, *path.parents) if each in seen), None)
        if around is not None and seen[around] and path not in first:
            continue
        real = path.resolve()
        if whole is None or real != whole:
            seen[path] = True
        if whole is not None and whole.is_relative_to(real):
            seen[path / whole.relative_to(real)] = False
    return {path: shown for path, shown in seen.items() if path not in first}


def mounted(command: Command, visible: Iterable[Path], hidden: Path | None = None) -> dict[Path, bool]:
    """`laid_out` of all that a command may read besides its box.

    Raises:
        SandboxError: the command's folder is not among that, nor in its box.
    """
    wanted = (*visible, *command.visible)
    if not any(command.folder.is_relative_to(path) for path in (command.box, *wanted)):
        raise SandboxError(f"folder {command.folder}: lies neither in {command.box} nor in what is visible")
    return laid_out(wanted, hidden, (command.box,))


def environment(command: Command) -> dict[str, str]:
    """Its variables, besides those of its image."""
    private = {"HOME": str(command.box / "home"), "TMPDIR": str(command.box / "tmp"), MARK: str(command.box)}
    return {"LANG": "C.UTF-8", **command.environment, **private}
