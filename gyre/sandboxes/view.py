"""What a command sees of this machine under bubblewrap: its programs, what it is shown, and its own box; no more."""

import sys
from collections.abc import Iterable
from pathlib import Path

from gyre.sandboxes.shown import laid_out

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
_SYSTEM = (*_PROGRAMS, *(Path("/etc", name) for name in _ETC))
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
        hidden: a folder that stays empty although it may lie in something visible, or among the system's programs, or
            be found by a link; what is visible in it, and the box, are shown all the same.
        small_bytes: size of /tmp and of /dev/shm each.
        places: further names of folders, as `Command.places`.
    """
    size = str(small_bytes)
    arguments = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]  # writable for root's own uid otherwise
    arguments += ["--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    arguments += ["--size", size, "--tmpfs", "/tmp"]  # noqa: S108
    for path in _SYSTEM:
        arguments += _shown(path)
    for path in sorted(_OURS.iterdir()):
        arguments += ["--ro-bind", str(path), f"/etc/{path.name}"]
    # What is asked for by a link's name is found there, and where the link leads.
    wanted = {each for path in visible if path.exists() for each in (path.absolute(), path.resolve())}
    system = (path for path in _SYSTEM if path.exists() and not path.is_symlink())
    seen = laid_out((path for path in wanted if not _linked(path)), hidden, system)
    for path, whole in seen.items():
        arguments += ["--ro-bind", str(path), str(path)] if whole else ["--tmpfs", str(path)]
    arguments += ["--bind", str(box), str(box)]
    for name, path in places:
        arguments += ["--bind" if path.is_relative_to(box) else "--ro-bind", str(path), name]
    veils = [str(path) for path, whole in seen.items() if not whole]
    closed = [word for path in (*veils, "/") for word in ("--remount-ro", path)]
    return [*arguments, *closed]


def interpreter() -> tuple[str, tuple[Path, ...]]:
    """A Python for scripts of the standard library inside, and what must be visible for it."""
    found = Path(getattr(sys, "_base_executable", "") or sys.executable)
    return str(found), (found, Path(sys.base_prefix))


def _shown(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.exists() else []


def _linked(path: Path) -> bool:
    """Whether a path is found by way of one of the system's links, such as /lib."""
    return any(path.is_relative_to(each) for each in _SYSTEM if each.is_symlink())
