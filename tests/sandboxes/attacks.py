"""What hostile commands try, and which sandbox claims to hold it; docs/sandboxes.md has the same table.

An attack that uses something up is ended for it. One that reaches for something prints GOT and what, if it gets it, and
TRIED once it has tried.
"""

from dataclasses import dataclass

from gyre.sandboxes.port import Ending

ISOLATED = frozenset({"bubblewrap", "docker", "kubernetes"})
ALL = ISOLATED | {"process"}
SEEN = ALL - {"kubernetes"}
"""Where the runner sees the processes of a command: not on another node."""


@dataclass(frozen=True)
class Greedy:
    """Uses something up."""

    name: str
    """As in the table of docs/sandboxes.md."""
    script: str
    ending: Ending
    word: str
    """Stands in the reason."""
    held_by: frozenset[str] = ALL


@dataclass(frozen=True)
class Curious:
    """Reaches for something; LURES of the test are in its environment."""

    name: str
    script: str
    held_by: frozenset[str] = ISOLATED


GREEDY = (
    Greedy(
        "fork bomb",
        """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
        "processes",
        "processes",
    ),
    Greedy(
        "memory filled by many processes",
        """
import os, signal, sys, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(48 << 20)
        for at in range(0, len(held), 4096): held[at] = 1
        signal.pause()
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)
""",
        "memory",
        "MB",
    ),
    Greedy(
        "disk filled by large files",
        """
import time
for n in range(64):
    with open(str(n), "wb") as file: file.write(bytes(1 << 20))
time.sleep(600)
""",
        "disk",
        "ended because",
    ),
    Greedy(
        "disk filled by many small files",
        """
import time
for n in range(3000): open(str(n), "w").close()
time.sleep(600)
""",
        "disk",
        "ended because",
    ),
    Greedy(
        "folders nested deeper than paths go",
        """
import os, time
for n in range(3000):
    os.mkdir("deep"); os.chdir("deep")
time.sleep(600)
""",
        "disk",
        "ended because",
    ),
    Greedy(
        "disk filled by files that are deleted and kept open",
        """
import os, time
held = []
for n in range(24):
    file = open("deleted", "wb"); file.write(bytes(1 << 20)); file.flush(); os.unlink("deleted"); held.append(file)
time.sleep(600)
""",
        "disk",
        "ended because",
        SEEN,
    ),
    Greedy(
        "disk filled by deleted files that are only mapped",
        """
import ctypes, os, time
for n in range(24):
    with open("deleted", "w+b") as file:
        file.write(bytes(1 << 20)); file.flush(); os.unlink("deleted")
        ctypes.CDLL(None).mmap(None, ctypes.c_size_t(1 << 20), 1, 1, file.fileno(), ctypes.c_long(0))
time.sleep(600)
""",
        "disk",
        "ended because",
        SEEN,
    ),
    Greedy(
        "memory filled by files that only memory holds",
        """
import os, sys, time
if os.fork() == 0:
    held = []
    for n in range(64): held.append(os.memfd_create("held")); os.write(held[-1], bytes(4 << 20))
    time.sleep(600)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)
""",
        "memory",
        "MB",
    ),
    Greedy(
        "memory filled by what processes share",
        """
import mmap, os, sys, time
if os.fork() == 0:
    held = mmap.mmap(-1, 256 << 20)
    for at in range(0, len(held), 4096): held[at] = 1
    time.sleep(600)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)
""",
        "memory",
        "MB",
    ),
    Greedy(
        "a bomb that leaves session and parent, deaf to its end",
        """
import os, signal
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork(): os._exit(0)
    except OSError: pass
""",
        "processes",
        "processes",
    ),
    Greedy(
        "flood of output",
        """
import os
while True: os.write(1, bytes(1 << 16))
""",
        "output",
        "output",
    ),
    Greedy(
        "stopped, and deaf to its deadline",
        """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGSTOP)
while True: signal.pause()
""",
        "timeout",
        "deadline",
    ),
)

TRY = """
import os, socket, sys
def attempt(what, act):
    try: found = act()
    except Exception as error: print("held", what, type(error).__name__, error, flush=True)
    else: print("GOT", what, found, flush=True)
"""

CURIOUS = (
    Curious(
        "a service of the host's loopback",
        TRY
        + """
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", int(os.environ["LURE_PORT"])), 5))
def heard():
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); asking.settimeout(1)
    asking.sendto(b"?", ("127.0.0.1", int(os.environ["LURE_UDP"]))); return asking.recv(9)
attempt("udp", heard)
print("TRIED")
""",
    ),
    Curious(
        "an abstract Unix socket of the host",
        TRY
        + """
def called():
    with socket.socket(socket.AF_UNIX) as caller: caller.connect("\\0" + os.environ["LURE_ABSTRACT"])
attempt("abstract", called)
print("TRIED")
""",
    ),
    Curious(
        "another network, by name or address",
        TRY
        + """
def sent():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender: sender.sendto(b"?", ("192.0.2.1", 53))
attempt("udp", sent)
attempt("name", lambda: socket.getaddrinfo("gyre.invalid", 80))
print("TRIED")
""",
    ),
    Curious(
        "sockets that pass the network by",
        TRY
        + """
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
print("TRIED")
""",
        ALL,
    ),
    Curious(
        "files of the host: logins, tests, other workspaces",
        TRY
        + """
for path in os.environ["LURE_FILES"].split(":"):
    attempt(path, lambda: open(path).read())
    def linked():
        name = "link-%d" % len(os.listdir(".")); os.symlink(path, name); return open(name).read()
    attempt("by link " + path, linked)
    attempt("hard link " + path, lambda: os.link(path, "hard-%d" % len(os.listdir("."))))
    attempt("through /proc", lambda: open("/proc/1/root" + path).read())
print("TRIED")
""",
    ),
    Curious(
        "what other processes know",
        TRY
        + """
def environments():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: words = open("/proc/%s/environ" % pid, "rb").read()
        except OSError: continue
        if os.environ["LURE_SECRET_NAME"].encode() + b"=" in words: found.append(pid)
    if not found: raise LookupError("nobody's")
    return found
attempt("environ", environments)
attempt("memory", lambda: open("/proc/%d/mem" % int(os.environ["LURE_PID"]), "rb"))
attempt("signal", lambda: os.kill(int(os.environ["LURE_PID"]), 0))
print("TRIED")
""",
    ),
    Curious(
        "settings of the kernel",
        TRY
        + """
for name in ("kernel/core_pattern", "vm/drop_caches", "kernel/hostname"):
    attempt(name, lambda: open("/proc/sys/" + name, "r+"))
attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w"))
print("TRIED")
""",
    ),
    Curious(
        "mounts and devices",
        TRY
        + """
import ctypes, stat
libc = ctypes.CDLL(None, use_errno=True)
def mounted():
    os.makedirs("mnt", exist_ok=True)
    if libc.mount(b"none", b"mnt", b"tmpfs", 0, None): raise OSError(ctypes.get_errno(), "mount")
attempt("mount", mounted)
attempt("device", lambda: os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
print("TRIED")
""",
        ALL,
    ),
    Curious(
        "new namespaces",
        TRY
        + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def unshared():
    if libc.unshare(0x10000000): raise OSError(ctypes.get_errno(), "unshare")
attempt("user", unshared)
print("TRIED")
""",
    ),
    Curious(
        "programs of the system, to change them",
        TRY
        + """
for path in ("/usr/bin/gyre-was-here", "/etc/gyre-was-here", "/gyre-was-here"):
    attempt(path, lambda: open(path, "w").close())
print("TRIED")
""",
    ),
)

CROWD = """
import os, time
for turn in range(3):
    orphans = []
    for n in range(20):
        reader, writer = os.pipe()
        if os.fork() == 0:
            if (orphan := os.fork()) == 0: os._exit(0)
            os.write(writer, b"%d" % orphan); os._exit(0)
        orphans.append(int(os.read(reader, 20))); os.close(reader); os.close(writer); os.wait()
    while any(os.path.exists("/proc/%d" % orphan) for orphan in orphans): time.sleep(0.01)
print("TRIED")
"""
"""Has sixty short-lived processes without a parent, twenty at a time, and waits until they are gone."""

SURVIVOR = """
import os, signal, sys, time
for how in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
        os.execve(sys.executable, ["python", "-I", "-S", "-c", "import time; time.sleep(900)", sys.argv[1]], {})
"""
"""Leaves its session, its parent and its environment; its command line has a word to know it by."""

REMAINS = """
import os, socket
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
os.symlink("/etc/passwd", "absolute"); os.symlink("../../../../../etc/passwd", "upwards"); os.symlink(".", "loop")
os.mkdir("shut"); open("shut/inside", "w").close(); os.chmod("shut", 0)
open("sparse", "w").truncate(1 << 22)
for name in (b"\\xff\\xfe", b"-rf", b"a\\nb", b"n" * 255, b" ", b"*"): open(name, "w").close()
os.makedirs("/".join(["d" * 200] * 12))
print("TRIED")
"""
"""Things that are hard to keep and to clear away."""
