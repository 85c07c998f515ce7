"""Further hostile commands that reach for something: what a kernel shares between all who use it."""

from tests.sandboxes.attacks import ALL, TRY, Curious

_CALLS = """
import ctypes, platform
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
X86 = platform.machine() == "x86_64"
def call(x86, other, *words):
    found = LIBC.syscall(x86 if X86 else other, *words)
    if found < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
"""

PRYING = (
    Curious(
        "keys, rings and programs of the kernel",
        TRY
        + _CALLS
        + """
room = ctypes.create_string_buffer(256)
kind = ctypes.create_string_buffer(b"\\1\\0\\0\\0\\4\\0\\0\\0\\4\\0\\0\\0\\1\\0\\0\\0", 128)
attempt("io_uring", lambda: call(425, 425, 8, room))
attempt("userfaultfd", lambda: call(323, 282, 1))
attempt("add_key", lambda: call(248, 217, b"user", b"gyre", b"secret", 6, -3))
attempt("keyctl", lambda: call(250, 219, 0, -3, 1))
attempt("bpf", lambda: call(321, 280, 0, kind, 128))
attempt("fanotify", lambda: call(300, 262, 0, 0))
attempt("perf", lambda: call(298, 241, ctypes.create_string_buffer(b"\\1\\0\\0\\0\\x88", 136), 0, -1, -1, 0))
attempt("file by its handle", lambda: call(304, 265, -100, ctypes.create_string_buffer(b"\\10\\0\\0\\0\\1", 64), 0))
print("TRIED")
""",
    ),
    Curious(
        "clocks",
        TRY
        + _CALLS
        + """
import time
attempt("clock_settime", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
now = (ctypes.c_long * 2)(int(time.time()), 0)
attempt("settimeofday", lambda: call(164, 170, now, None))
attempt("adjtimex", lambda: call(159, 171, (ctypes.c_uint * 64)(0x2)))
attempt("the hardware's", lambda: os.open("/dev/rtc0", os.O_RDWR))
print("TRIED")
""",
        ALL,
    ),
    Curious(
        "descriptors, memory and limits of other processes",
        TRY
        + _CALLS
        + """
import resource
pid = int(os.environ["LURE_PID"])
for name in ("fd", "fdinfo", "map_files", "task"): attempt(name, lambda: os.listdir("/proc/%d/%s" % (pid, name)))
for name in ("cwd", "root", "exe"): attempt(name, lambda: os.readlink("/proc/%d/%s" % (pid, name)))
for name in ("maps", "auxv", "cmdline"): attempt(name, lambda: open("/proc/%d/%s" % (pid, name)).read())
attempt("pidfd", lambda: os.pidfd_open(pid))
attempt("ptrace", lambda: call(101, 117, 0x4206, pid, 0, 0))
attempt("its limits", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE))
attempt("its niceness", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
attempt("its processors", lambda: os.sched_setaffinity(pid, {0}))
attempt("its deadline", lambda: open("/proc/%d/oom_score_adj" % pid, "w"))
print("TRIED")
""",
    ),
    Curious(
        "control groups, to leave them",
        TRY
        + """
for parent, _, names in os.walk("/sys/fs/cgroup"):
    for name in {"cgroup.procs", "tasks", "release_agent", "memory.max", "pids.max"} & set(names):
        attempt(parent + "/" + name, lambda: open(parent + "/" + name, "w"))
def outside():
    if "gyre" in open("/proc/self/cgroup").read(): return "it sees where it is"
    raise LookupError("nothing")
attempt("its place", outside)
print("TRIED")
""",
    ),
    Curious(
        "terminals and devices of the host",
        TRY
        + """
names = "tty console kmsg mem port kvm fuse net/tun vda sda nvme0n1 loop-control mapper/control vcs uinput vsock"
for name in names.split():
    attempt(name, lambda: os.open("/dev/" + name, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
for name in filter(str.isdigit, os.listdir("/dev/pts")):
    attempt("pts " + name, lambda: os.open("/dev/pts/" + name, os.O_WRONLY | os.O_NOCTTY))
print("TRIED")
""",
    ),
    Curious(
        "whatever else of /proc and /sys can be written",
        TRY
        + """
import stat
for top in ("/proc", "/sys"):
    for parent, folders, names in os.walk(top):
        folders[:] = [each for each in folders if not (each.isdigit() or each in ("self", "thread-self", "pressure"))]
        for path in (parent + "/" + name for name in names):
            try: descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError: continue
            if stat.S_ISREG(os.fstat(descriptor).st_mode): print("GOT", path)
print("TRIED")
""",
    ),
    Curious(
        "memory that others share",
        TRY
        + _CALLS
        + """
attempt("System V", lambda: call(29, 194, int(os.environ["LURE_SHARED"]), 0, 0))
attempt("by name", lambda: open("/dev/shm/" + os.environ["LURE_SHARED"]).read())
print("TRIED")
""",
    ),
    Curious(
        "the host's handler of crashes",
        TRY
        + """
import resource
def kept():
    if max(resource.getrlimit(resource.RLIMIT_CORE)) in (-1, 0) or max(resource.getrlimit(resource.RLIMIT_CORE)) > 1:
        return "a crash is handed over"
    raise PermissionError("none is")
attempt("limit", kept)
attempt("another limit", lambda: resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096)))
print("TRIED")
""",
        ALL - {"kubernetes"},
    ),
    Curious(
        "programs that lend their owner's powers",
        TRY
        + _CALLS
        + """
open("lent", "w").close()
attempt("chmod", lambda: os.chmod("lent", 0o4755))
attempt("fchmod", lambda: os.fchmod(os.open("lent", os.O_RDONLY), 0o4755))
attempt("fchmodat", lambda: os.chmod("lent", 0o4755, dir_fd=os.open(".", os.O_RDONLY)))
def made(path, mode):
    os.umask(0); os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode))
    if not os.stat(path).st_mode & 0o4000: raise PermissionError("without the bit")
attempt("open", lambda: made("opened", 0o4755))
def unnamed():
    found = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)
    if not os.fstat(found).st_mode & 0o4000: raise PermissionError("without the bit")
attempt("without a name", unnamed)
def node():
    os.mknod("node", 0o104755)
    if not os.stat("node").st_mode & 0o4000: raise PermissionError("without the bit")
attempt("mknod", node)
def second():
    how = (ctypes.c_ulonglong * 3)(0o101, 0o4755, 0)
    call(437, 437, -100, b"second", how, 24)
    if not os.stat("second").st_mode & 0o4000: raise PermissionError("without the bit")
attempt("openat2", second)
attempt("fchmodat2", lambda: call(452, 452, -100, b"lent", 0o4755, 0))
print("TRIED")
""",
        frozenset({"bubblewrap"}),
    ),
)
