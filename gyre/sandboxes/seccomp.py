"""A filter of system calls for sandboxes of this kernel, compiled by libseccomp where that is installed.

Refused is what no program of an agent needs and what has opened kernels before, or leads around the namespaces: an
AF_VSOCK socket speaks with the host of a virtual machine without any network. Refused, too, is the bit that lends a
program's user to whoever starts it: a box is a folder of the host, where any user of it may come by. Everything else
is allowed.
"""

import ctypes
import ctypes.util
import errno
import os
import socket

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EQUAL, _GREATER, _MASKED_EQUAL = 4, 6, 7
_REFUSED = (
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "fanotify_init",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "finit_module",
    "delete_module",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "kexec_load",
    "kexec_file_load",
    "keyctl",
    "lookup_dcookie",
    "mount",
    "mount_setattr",
    "move_mount",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "quotactl",
    "reboot",
    "request_key",
    "setns",
    "swapon",
    "swapoff",
    "syslog",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "vhangup",
)
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_FAMILIES = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
_TIOCSTI = 0x5412  # types into the terminal


_LENDS = 0o4000
_MODES = {  # call -> which of its arguments is a mode
    "chmod": 1,
    "creat": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "mknod": 1,
    "mknodat": 2,
}
_OPENS = {"open": (1, 2), "openat": (2, 3)}  # which are flags, and a mode where those make a file
_MAKES = (os.O_CREAT, os.O_TMPFILE & ~os.O_DIRECTORY)
_NEWER = {"fchmodat2": 452}  # than many a libseccomp; their numbers are those of all machines


class _Condition(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def compiled() -> int | None:
    """A file descriptor that holds the filter; None where there is no libseccomp."""
    name = ctypes.util.find_library("seccomp") or "libseccomp.so.2"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ALLOW)))
    try:
        for call in _REFUSED:
            _refuse(library, context, call, errno.EPERM)
        for call in ("clone3", "openat2"):  # what they are asked cannot be looked at; all fall back to others
            _refuse(library, context, call, errno.ENOSYS)
        _refuse_lent(library, context)
        for bit in (1 << place for place in range(32) if _NEW_NAMESPACES >> place & 1):
            _refuse(library, context, "clone", errno.EPERM, _Condition(0, _MASKED_EQUAL, bit, bit))
        _refuse(library, context, "ioctl", errno.EPERM, _Condition(1, _MASKED_EQUAL, 0xFFFFFFFF, _TIOCSTI))
        for family in set(range(max(_FAMILIES) + 1)) - {int(each) for each in _FAMILIES}:
            _refuse(library, context, "socket", errno.EAFNOSUPPORT, _Condition(0, _EQUAL, family, 0))
        _refuse(library, context, "socket", errno.EAFNOSUPPORT, _Condition(0, _GREATER, max(_FAMILIES), 0))
        return _exported(library, context)
    finally:
        library.seccomp_release(context)


def _refuse_lent(library: ctypes.CDLL, context: ctypes.c_void_p) -> None:
    for call, place in _MODES.items():
        _refuse(library, context, call, errno.EPERM, _Condition(place, _MASKED_EQUAL, _LENDS, _LENDS))
    for call, (flags, mode) in _OPENS.items():
        for made in _MAKES:
            lends = _Condition(mode, _MASKED_EQUAL, _LENDS, _LENDS)
            _refuse(library, context, call, errno.EPERM, _Condition(flags, _MASKED_EQUAL, made, made), lends)


def _refuse(library: ctypes.CDLL, context: ctypes.c_void_p, call: str, error: int, *on: _Condition) -> None:
    known = library.seccomp_syscall_resolve_name(call.encode())
    number = known if known >= 0 else _NEWER.get(call, known)
    conditions = (_Condition * len(on))(*on)
    action = ctypes.c_uint32(_ERRNO | error)
    if number >= 0:  # some calls are of other machines only
        library.seccomp_rule_add_array(context, action, number, len(on), conditions)


def _exported(library: ctypes.CDLL, context: ctypes.c_void_p) -> int:
    descriptor = os.memfd_create("gyre-seccomp")
    if library.seccomp_export_bpf(context, descriptor) != 0:
        os.close(descriptor)
        raise OSError("libseccomp cannot write its filter")
    return descriptor
