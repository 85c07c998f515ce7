"""A server's rank in a group, as SGLang 0.5.23 joins it (`init_custom_process_group`): `python peer.py GROUP RANK`.

Reads the group as JSON, joins, receives its buckets, and prints the SHA-256 of all that came. With `--leave N` it ends
itself, without a word, after N buckets.
"""

import hashlib
import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from gyre.addresses import at

c10d: Any = distributed_c10d
LIMIT = timedelta(seconds=60)


def main(said: str, rank: int, leave: int) -> None:
    group = json.loads(said)
    size = int(os.environ.get("SIZE", "2"))
    rendezvous = c10d.rendezvous(f"tcp://{at(group['address'], group['port'])}", rank, size, timeout=LIMIT)
    store, rank, size = next(rendezvous)
    store.set_timeout(LIMIT)
    inside = c10d.PrefixStore(group["name"], store)
    kind = c10d.Backend(group["backend"])
    made, _ = c10d._new_process_group_helper(size, rank, [], kind, inside, group_name=group["name"], timeout=LIMIT)
    c10d._world.pg_group_ranks[made] = {each: each for each in range(size)}
    found = hashlib.sha256()
    for number, bucket in enumerate(group["buckets"]):
        if number == leave:
            os._exit(3)
        sizes = [
            torch.Size(shape).numel() * getattr(torch, kind).itemsize
            for shape, kind in zip(bucket["shapes"], bucket["dtypes"], strict=True)
        ]
        flat = torch.empty(sum(sizes), dtype=torch.uint8)
        distributed.broadcast(flat, src=0, group=made)
        found.update(flat.numpy().tobytes())
    distributed.destroy_process_group(made)
    sys.stdout.write(found.hexdigest() + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1)
