"""Run a command in a session of its own, and end all of it when standard input ends: `python keeper.py COMMAND ...`.

An SGLang server is a tree of processes that hold ports and memory. Whoever starts it holds the other end of this
process's standard input, so that the tree ends with its owner, however that one ended. Exits as the command does.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Run it; the command's exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        end()

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    end()  # what it leaves behind
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
