"""Experts as files have them, three tensors each, beside transformers' two for all of a layer's.

transformers computes with `gate_up_proj` (E, 2 I, H) and `down_proj` (E, H, I), and reads and writes an expert's
`gate_proj`, `up_proj` (I, H) and `down_proj` (H, I). Both have the same numbers in the same order.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_BOTH, _DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"
_ONE = re.compile(r"(.*\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


def apart(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The same state with an entry for each expert's tensor, a view, where it has fused ones; others as they are."""
    return {name: each for fused, tensor in state.items() for name, each in _parts(fused, tensor)}


def together(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Inverse of `apart`, by copies. Raises ValueError where tensors of an expert are missing or have other shapes."""
    import torch

    found: dict[str, Tensor] = {}
    layers: defaultdict[str, dict[tuple[int, str], Tensor]] = defaultdict(dict)
    for name, tensor in state.items():
        if (match := _ONE.fullmatch(name)) is not None:
            layers[match[1]][int(match[2]), match[3]] = tensor
        else:
            found[name] = tensor
    for layer, parts in layers.items():
        count = len(parts) // 3
        if set(parts) != {(expert, kind) for expert in range(count) for kind in ("gate", "up", "down")}:
            raise ValueError(f"{layer[:-1]}: tensors of its experts are missing")
        try:
            both = [torch.cat((parts[expert, "gate"], parts[expert, "up"])) for expert in range(count)]
            found[f"{layer}gate_up_proj"] = torch.stack(both)
            found[f"{layer}down_proj"] = torch.stack([parts[expert, "down"] for expert in range(count)])
        except RuntimeError as error:
            raise ValueError(f"{layer[:-1]}: its experts have different shapes") from error
    return found


def _parts(name: str, tensor: "Tensor") -> "Iterator[tuple[str, Tensor]]":
    if name.endswith(_BOTH):
        layer = name.removesuffix("gate_up_proj")
        for expert, both in enumerate(tensor):
            gate, up = both.chunk(2)
            yield f"{layer}{expert}.gate_proj.weight", gate
            yield f"{layer}{expert}.up_proj.weight", up
    elif name.endswith(_DOWN):
        layer = name.removesuffix("down_proj")
        for expert, down in enumerate(tensor):
            yield f"{layer}{expert}.down_proj.weight", down
    else:
        yield name, tensor
