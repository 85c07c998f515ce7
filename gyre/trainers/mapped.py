"""The tensors that a loaded model has, as its folder's files have them: mapped and not read, however large.

transformers fills an empty model: it renames what files hold, and stacks experts. From the same empty model the same
names lead back to the files. Whatever is more than a tensor of a file under another name (quantized, converted,
missing, there twice) is left to transformers.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyre.rl.experts import apart
from gyre.trainers.fsdp.empty import empty_model

LOG = logging.getLogger(__name__)
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_STACKED = {
    ("mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"): [("MergeModulelist", 0), ("Concatenate", 1)],
    ("mlp.experts.*.down_proj.weight",): [("MergeModulelist", 0)],
}
"""Conversions that `apart` takes back: what is put together -> how, and along which dimensions."""


def mapped(folder: Path) -> dict[str, Tensor] | None:
    """Name -> tensor, each as its file has it, under the names of `gyre.trainers.torch.file_state`.

    Returns:
        None where only loading can tell: what it gives in float32 is not just these tensors in float32.
    """
    try:
        return _mapped(folder)
    except Exception as error:  # noqa: BLE001 - loading, which is the way out, says what is wrong with a folder
        LOG.info("model folder %s: its files are not understood: %s", folder, error)
        return None


def _mapped(folder: Path) -> dict[str, Tensor] | None:
    model, config = empty_model(folder)
    state = model.state_dict(keep_vars=True)
    if _altered(folder, config) or any(each.dtype != torch.float32 or not each.numel() for each in state.values()):
        return None
    first: dict[int, str] = {}
    kept = {name: first.setdefault(id(each), name) for name, each in state.items()}  # tied: the name that comes first
    wanted = {name: each.shape for name, each in apart({name: state[name].data for name in kept.values()}).items()}
    named, found = _namer(model, state, wanted), defaultdict[str, list[Tensor]](list)
    for key, tensor in _tensors(folder):
        name, alone = named(key)
        if alone:
            found[name].append(tensor)
        elif name in state and tensor.shape == state[name].shape:
            for each, part in apart({kept[name]: tensor}).items():
                found[each].append(part)
        elif name in state:
            return None
    if found.keys() != wanted.keys() or any(len(each) > 1 for each in found.values()):
        return None
    same = all(tensor.shape == wanted[name] for name, (tensor,) in found.items())
    return {name: tensor for name, (tensor,) in found.items()} if same else None


def _altered(folder: Path, config: Any) -> bool:
    """Whether a model is more than the tensors of its files."""
    said = (config, json.loads((folder / "config.json").read_text()))
    quantized = getattr(said[0], "quantization_config", None) or said[1].get("quantization_config")
    elsewhere = getattr(said[0], "transformers_weights", None) or said[1].get("transformers_weights")
    return bool(quantized or elsewhere or (folder / "adapter_config.json").exists())


def _namer(model: Any, state: dict[str, Any], wanted: dict[str, torch.Size]) -> Callable[[str], tuple[str, bool]]:
    """From a name in a file to the loaded model's, and whether it is an expert's alone. Raises ValueError."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules, prefix = get_model_conversion_mapping(model), model.base_model_prefix
    renaming = [each for each in rules if isinstance(each, WeightRenaming)]
    converting = [each for each in rules if isinstance(each, WeightConverter)]
    if len(renaming) + len(converting) != len(rules):
        raise ValueError("it has conversions of another kind")
    of_source = {source: each for each in converting for source in each.source_patterns}
    every = {**state, **wanted}

    def named(key: str) -> tuple[str, bool]:
        name, source = rename_source_key(key, renaming, converting, prefix, state)
        if source is None:
            if name not in state and key in state:
                raise ValueError(f"{key}: is called {name} and is not")
            return name, False
        alone, _ = rename_source_key(key, renaming, [], prefix, every)
        if not _is_stacked(of_source[source]) or alone not in wanted or alone in state:
            raise ValueError(f"{key}: is converted")
        return alone, True

    return named


def _is_stacked(rule: Any) -> bool:
    how = [(type(each).__name__, getattr(each, "dim", None)) for each in rule.operations]
    return _STACKED.get(tuple(rule.source_patterns)) == how


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    whole = folder / _WHOLE
    names = [_WHOLE] if whole.is_file() else json.loads((folder / _INDEX).read_text())["weight_map"].values()
    for name in sorted(set(names)):
        with safe_open(folder / name, "pt") as file:
            for key in list(file.keys()):
                yield key, file.get_tensor(key)
