"""Where the ranks of a trainer find each other: a store in the trainer's process, wherever the ranks are started."""

import ipaddress
import os
import socket
from collections.abc import Mapping
from datetime import timedelta

from torch import distributed

from gyre.addresses import listener
from gyre.trainers.nodes import address_of, nodes_of

_ALONE = "127.0.0.1"


class Meeting:
    """Held by a trainer for as long as it has ranks.

    Args:
        environment: where nodes are named in it, it listens at the address of `GYRE_LISTEN`, or to all networks of
            this machine; else to this machine.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        where = address_of(environment) if nodes_of(environment) else _ALONE
        with listener(where or ("::" if socket.has_dualstack_ipv6() else "")) as held:
            self.port: int = held.getsockname()[1]
            self._store = distributed.TCPStore(  # type: ignore[attr-defined]
                where or _ALONE,
                self.port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=held.detach(),
            )


def meet(trainer: str, port: int, backend: str, rank: int, ranks: int, timeout: timedelta) -> None:
    """Initialise torch.distributed with the other ranks.

    Args:
        trainer: address of its machine, as this rank sees it.
        port: of its `Meeting`.
        backend: of torch.distributed.
        rank: this one.
        ranks: all.
        timeout: longest that this rank waits for another.
    """
    if ipaddress.ip_address(trainer.partition("%")[0]).is_loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = distributed.TCPStore(trainer, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
