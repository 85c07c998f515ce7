"""Stub harness: `python -I -S agent.py [options]`, run with the workspace as current directory. See `--help`.

Only finds its package and hands over, so that Python's cache of compiled modules serves everything that is long.
"""

# Importing pathlib would cost a tenth of an episode.
# ruff: noqa: PTH100, PTH120

import os
import sys

if __name__ == "__main__":
    above = os.path.abspath(__file__)
    for _ in ("stub", "harnesses", "gyre"):
        above = os.path.dirname(above)
    sys.path.insert(0, os.path.dirname(above))
    code = __import__("gyre.harnesses.stub.cli", fromlist=["main"]).main(sys.argv[1:], os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to clean up, and the interpreter's own farewell costs milliseconds
