"""Experts apart and together: the same numbers in the same order."""

import pytest
import torch

from gyre.rl.experts import apart, together

LAYER = "model.layers.0.mlp.experts."


def state() -> dict[str, torch.Tensor]:
    return {
        "model.norm.weight": torch.arange(5.0),
        f"{LAYER}gate_up_proj": torch.arange(3 * 8 * 5.0).view(3, 8, 5),
        f"{LAYER}down_proj": torch.arange(3 * 5 * 4.0).view(3, 5, 4),
    }


def test_each_experts_tensors_come_in_the_order_of_the_fused_ones() -> None:
    fused, parts = state(), apart(state())
    assert list(parts)[1:4] == [f"{LAYER}0.gate_proj.weight", f"{LAYER}0.up_proj.weight", f"{LAYER}1.gate_proj.weight"]
    flat = torch.cat([each.reshape(-1) for each in parts.values()])
    assert torch.equal(flat, torch.cat([each.reshape(-1) for each in fused.values()]))
    assert torch.equal(parts[f"{LAYER}2.up_proj.weight"], fused[f"{LAYER}gate_up_proj"][2, 4:])


def test_what_is_written_to_the_parts_is_written_to_the_fused_ones() -> None:
    fused = state()
    apart(fused)[f"{LAYER}1.down_proj.weight"].zero_()
    assert not fused[f"{LAYER}down_proj"][1].any()


def test_parts_come_together_in_any_order_and_others_stay() -> None:
    fused = state()
    found = together(dict(sorted(apart(fused).items(), reverse=True)))
    assert found.keys() == fused.keys()
    assert all(torch.equal(found[name], each) for name, each in fused.items())
    assert together(fused).keys() == fused.keys()


def test_missing_and_misshapen_experts_are_refused_by_layer() -> None:
    parts = apart(state())
    short = {name: each for name, each in parts.items() if "1.up_proj" not in name}
    with pytest.raises(ValueError, match=r"model.layers.0.mlp.experts: tensors of its experts are missing"):
        together(short)
    with pytest.raises(ValueError, match="have different shapes"):
        together(parts | {f"{LAYER}1.down_proj.weight": torch.zeros(2, 2)})
