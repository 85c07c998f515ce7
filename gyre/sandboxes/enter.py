"""Opens a doorway from inside a sandbox that has no network: `python -I -S enter.py DOOR PORT [COMMAND...]`.

Listens on 127.0.0.1:PORT, hands that listening socket out through DOOR (a Unix socket), and becomes the command. Who
holds the other side accepts the connections: nothing of gyre stays inside, and the command never holds the door.
For example `python -I -S enter.py /run/gyre/door 47180 curl http://127.0.0.1:47180`.
"""

# Nothing of gyre can be imported where this runs.

import os
import socket
import sys

if __name__ == "__main__":
    door, port, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    parent, _, name = door.rpartition("/")
    folder = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as way_out:
        way_out.connect(f"/proc/self/fd/{folder}/{name}")  # an address takes 107 bytes, a path more
        socket.send_fds(way_out, [b"."], [listener.fileno()])
    os.close(folder)
    if command:
        try:
            os.execvp(command[0], command)  # noqa: S606 (a shell would be in the way)
        except OSError as error:
            sys.exit(f"{command[0]}: {error.strerror}")
