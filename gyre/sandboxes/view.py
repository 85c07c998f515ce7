"""What a command sees of this machine under bubblewrap: its programs, what it is shown, and its own box; no more."""

import sys
from collections.abc import Iterable
from pathlib import Path

_PROGRAMS = tuple(Path("/", name) for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"))
_ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "fonts",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_OURS = Path(__file__).with_name("etc")


def view(
    box: Path,
    visible: Iterable[Path],
    hidden: Path | None,
    small_bytes: int,
    places: Iterable[tuple[str, Path]] = (),
) -> list[str]:
    """Arguments of bwrap that build a root in which nothing but the box and two small folders in memory can be written.

    Args:
        box: the command's own folder.
        visible: what else may be read; of what is not there nothing is shown.
        hidden: a folder that stays empty although it may lie in something visible; what is visible in it, and the box,
            are shown all the same.
        small_bytes: size of /tmp and of /dev/shm each.
        places: further names of folders, as `Command.places`.
    """
    size = str(small_bytes)
    arguments = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]  # writable for root's own uid otherwise
    arguments += ["--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    arguments += ["--size", size, "--tmpfs", "/tmp"]  # noqa: S108
    for path in (*_PROGRAMS, *(Path("/etc", name) for name in _ETC)):
        arguments += _shown(path)
    for path in sorted(_OURS.iterdir()):
        arguments += ["--ro-bind", str(path), f"/etc/{path.name}"]
    inner, outer = _apart(visible, hidden)
    arguments += [word for path in outer for word in ("--ro-bind", str(path), str(path))]
    veil = [str(hidden)] if hidden and any(hidden.is_relative_to(path) for path in outer) else []
    arguments += [word for path in veil for word in ("--tmpfs", path)]
    arguments += [word for path in inner for word in ("--ro-bind", str(path), str(path))]
    arguments += ["--bind", str(box), str(box)]
    for name, path in places:
        arguments += ["--bind" if path.is_relative_to(box) else "--ro-bind", str(path), name]
    closed = [word for path in (*veil, "/") for word in ("--remount-ro", path)]
    return [*arguments, *closed]


def interpreter() -> tuple[str, tuple[Path, ...]]:
    """A Python for scripts of the standard library inside, and what must be visible for it."""
    found = Path(getattr(sys, "_base_executable", "") or sys.executable)
    return str(found), (found, Path(sys.base_prefix))


def _shown(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.exists() else []


def _apart(visible: Iterable[Path], hidden: Path | None) -> tuple[list[Path], list[Path]]:
    """What lies in `hidden`, and what does not: both where it is asked for and where links lead, none in another."""
    inner: list[Path] = []
    outer: list[Path] = []
    wanted = {each for path in visible if path.exists() for each in (path.absolute(), path.resolve())}
    for path in sorted(wanted, key=lambda path: (len(path.parts), path)):
        shown = inner if hidden and path.is_relative_to(hidden) else outer
        if not any(path.is_relative_to(other) for other in (*_PROGRAMS, *shown)):
            shown.append(path)
    return inner, outer
