"""Run a command in a session of its own, and end all of it when standard input ends: `python keeper.py COMMAND ...`.

An SGLang server is a tree of processes that hold ports and memory. Whoever starts it holds the other end of this
process's standard input, so that the tree ends with its owner, however that one ended; a signal that is meant for all
of the owner's group, such as an interrupt from the keyboard, ends it too. Exits as the command does.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Run it; the command's exit code."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until there is something to end
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_unblocked,  # noqa: PLW1509 - there is no other thread yet
    )

    def end(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    for each in signals:
        signal.signal(each, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        end()

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    end()  # what it leaves behind
    return code if code >= 0 else 128 - code


def _unblocked() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
