"""Where a cell's ranks are started: here, or on the machines that the cell spans, each with a process of this module.

`GYRE_CELL_NODES` names them, "host:port,[address]:port": ranks are dealt out in order, as many to each. Who asks for a
rank has to know `GYRE_NODE_KEY`, and so has the node, and both have to be of the same version; then the connection is
the line between a trainer and its rank, and ends the rank when it ends. Only ranks are started, nothing else.

The key says who may ask; what is said after that is neither sealed nor hidden, so the network between the machines of
a cell has to be private. Lines are made from the address of `GYRE_LISTEN`, where one is named, and so ranks come back
to it when they meet.
"""

import importlib.metadata
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Protocol

from gyre.addresses import EVERYWHERE
from gyre.trainers.port import TrainerError

NODES, KEY, LISTEN = "GYRE_CELL_NODES", "GYRE_NODE_KEY", "GYRE_LISTEN"
LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 600.0  # a node's pod may still be starting
_ANSWER_SECONDS = 60.0  # for each word until a rank starts; after that, work takes as long as it takes
_FOR_EVER = 0.0
_AGAIN_SECONDS = 1.0
_ASKED_BYTES = 4096
_STRANGERS = 16
"""Callers at a time that have not shown yet that they know the key; a cell asks for one rank after the other."""
_RANKS = "gyre.trainers."


class NodeFailed(TrainerError):
    """A node does not start ranks; one line saying which and why."""


class RankProcess(Protocol):
    """What is known of a rank's process."""

    @property
    def pid(self) -> int:
        """0: it is on another machine."""

    def wait(self, timeout: float | None = None) -> object:
        """How it ended. Raises `subprocess.TimeoutExpired`: it has not, within so many seconds."""

    def kill(self) -> None:
        """End it, unless it is on another machine: its node sees to that."""


class _Elsewhere:
    pid = 0

    def __init__(self, node: str) -> None:
        self._node = node

    def wait(self, timeout: float | None = None) -> str:
        return f"something that {self._node} has printed"

    def kill(self) -> None:
        """See `RankProcess`."""


def begin(
    module: str, number: int, count: int, threads: int, environment: Mapping[str, str] = os.environ
) -> tuple[RankProcess, int]:
    """Start a rank's process.

    Args:
        module: what it runs, with the descriptor of its line as its argument.
        number: of the rank, below `count`.
        count: all ranks of the replica.
        threads: of the rank.
        environment: in which nodes and their key are named.
    Returns:
        Its process, and the descriptor of our end of its line.
    Raises:
        NodeFailed: its node cannot be reached, does not know us, or refuses us; or one is named twice.
    """
    if nodes := nodes_of(environment):
        node = nodes[number * len(nodes) // count]
        descriptor = _connected(node, address_of(environment))
        return _Elsewhere(node), _asked(node, descriptor, module, threads, environment.get(KEY, ""))
    ours, theirs = socket.socketpair()
    with theirs:
        process = _started(module, theirs.fileno(), threads)
    return process, ours.detach()


def nodes_of(environment: Mapping[str, str]) -> list[str]:
    """Those that are named, host:port; [] if ranks are started here. Raises `NodeFailed`: one is named twice."""
    nodes = [each for each in environment.get(NODES, "").split(",") if each]
    for node in nodes:
        if nodes.count(node) > 1:
            raise NodeFailed(f"{NODES}: {node} is named twice; name each machine of the cell once")
    return nodes


def address_of(environment: Mapping[str, str]) -> str:
    """The one address of this machine that its sockets are to have; empty: any."""
    where = environment.get(LISTEN, "")
    return "" if where in EVERYWHERE else where


def serve_ranks(listener: socket.socket, key: str) -> None:
    """Start the ranks that are asked for, for ever. Raises `NodeFailed` without a key."""
    if not key:
        raise NodeFailed(f"{KEY}: empty; give all machines of a cell the same secret")
    strangers = threading.BoundedSemaphore(_STRANGERS)
    while True:
        caller, (address, *_) = listener.accept()
        if not strangers.acquire(blocking=False):
            caller.close()
            LOG.warning("%s: is hung up on: %d others have not shown yet that they know the key", address, _STRANGERS)
            continue
        threading.Thread(target=_serve, args=(caller, address, key.encode(), strangers), daemon=True).start()


def _asked(node: str, descriptor: int, module: str, threads: int, key: str) -> int:
    """The descriptor of a connection to a node, once it has started a rank there."""
    try:
        with Connection(os.dup(descriptor)) as line:
            answer_challenge(line, key.encode())
            deliver_challenge(line, key.encode())
            line.send_bytes(json.dumps({"module": module, "threads": threads, "version": version()}).encode())
            refused = line.recv_bytes(_ASKED_BYTES).decode()
    except BlockingIOError as error:
        os.close(descriptor)
        raise NodeFailed(f"{node}: has said nothing for {_ANSWER_SECONDS:g} s; start `gyre node` there anew") from error
    except (AuthenticationError, EOFError, OSError) as error:
        os.close(descriptor)
        raise NodeFailed(f"{node}: starts no ranks for us ({error}); is {KEY} the same there?") from error
    if refused:
        os.close(descriptor)
        raise NodeFailed(f"{node}: {refused}")
    _set_patience(descriptor, _FOR_EVER)
    return descriptor


def _connected(node: str, source: str) -> int:
    host, _, port = node.rpartition(":")
    host = host.strip("[]")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    told = False
    while True:
        try:
            own = (source, 0) if source else None
            with socket.create_connection((host, int(port)), _PATIENCE_SECONDS, own) as found:
                found.settimeout(None)
                _keep_alive(found)
                _set_patience(found.fileno(), _ANSWER_SECONDS)
                return os.dup(found.fileno())
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or time.monotonic() > deadline:
                raise NodeFailed(f"{NODES}: {node}: {error}; is `gyre node` running there?") from error
            if not told:
                LOG.warning("%s: %s; it is waited for %.0f s: `gyre node` starts it", node, error, _PATIENCE_SECONDS)
            told = True
        time.sleep(_AGAIN_SECONDS)


def _serve(caller: socket.socket, address: str, key: bytes, strangers: threading.BoundedSemaphore) -> None:
    """Start one rank on this connection, for who knows the key; wait for its end."""
    with caller:
        try:
            asked = _let_in(caller, address, key)
        finally:
            strangers.release()
        if asked is None:
            return
        _set_patience(caller.fileno(), _FOR_EVER)
        process = _started(asked[0], caller.fileno(), asked[1])
    LOG.info("a rank of %s ended with %d", address, process.wait())


def _let_in(caller: socket.socket, address: str, key: bytes) -> tuple[str, int] | None:
    """Module and threads of the rank that is asked for; None: there is none to start, which was said."""
    try:
        _keep_alive(caller)
        _set_patience(caller.fileno(), _ANSWER_SECONDS)
        with Connection(os.dup(caller.fileno())) as line:
            deliver_challenge(line, key)
            answer_challenge(line, key)
            asked = json.loads(line.recv_bytes(_ASKED_BYTES))
            module, threads = str(asked["module"]), int(asked["threads"])
            refused = _refusal(module, str(asked.get("version")))
            line.send_bytes(refused.encode())
    except BlockingIOError:
        LOG.warning("%s: has said nothing for %g s, and is hung up on", address, _ANSWER_SECONDS)
        return None
    except (AuthenticationError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        LOG.warning("%s: asks for a rank, and gets none: %s", address, error)
        return None
    if refused:
        LOG.warning("%s: asks for a rank, and gets none: %s", address, refused)
        return None
    return module, threads


def _refusal(module: str, version_there: str) -> str:
    """Why nothing is started, one line; empty: it is."""
    if not module.startswith(_RANKS):
        return f"{module} is no rank"
    if version_there != version():
        return f"the cell has {version_there}, this node {version()}; install the same on both"
    return ""


def version() -> str:
    """What both ends of a line have to have alike: they send each other objects of these."""
    return ", ".join(f"{each} {importlib.metadata.version(each)}" for each in ("gyre", "torch"))


def _started(module: str, descriptor: int, threads: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", module, str(descriptor)],
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )


def _set_patience(descriptor: int, seconds: float) -> None:
    """How long a word on this connection is waited for, by any process that holds it: then BlockingIOError."""
    whole, rest = divmod(seconds, 1.0)
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(whole), int(rest * 1e6)))


def _keep_alive(connection: socket.socket) -> None:
    """A machine that went away without a word is noticed within minutes."""
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(level, option, value)
