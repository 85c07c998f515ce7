"""What is refused of a mixture of experts before a run begins, and the bodies behind claim checks of its records."""

from pathlib import Path
from typing import Any

import pytest

from bus.blobs import Blobs
from gyre.config import Config
from gyre.errors import ConfigError
from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.layout import Layout, complete
from gyre.trainers.port import MicroStepRefused
from services.experts import check_experts, reader, replays

DENSE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
MIXTURE = DENSE | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}


def config(*overrides: str) -> Config:
    return Config.load(None, ["packing.share_prefixes=false", *overrides])


CLUSTER = ("trainer.kind=megatron", "engine.kind=sglang")


def test_experts_are_told_and_taken_again_by_default() -> None:
    check_experts(config(*CLUSTER), MIXTURE)
    assert replays(config(*CLUSTER), MIXTURE)
    assert not replays(config(*CLUSTER, "trainer.routing_replay=false"), MIXTURE)
    assert not replays(config(*CLUSTER), DENSE)
    assert replays(config(*CLUSTER), MIXTURE | {"num_experts": None, "num_local_experts": 8})


@pytest.mark.parametrize(
    ("overrides", "model", "said"),
    [
        (("engine.kind=sglang",), MIXTURE, 'trainer.kind.*needs "megatron"'),
        (("trainer.kind=megatron",), MIXTURE, 'engine.kind.*needs "sglang"'),
        ((*CLUSTER, "trainer.data=3", "trainer.expert=3"), MIXTURE, "num_experts = 8: must be a multiple of the 3"),
        ((*CLUSTER, "trainer.data=2", "trainer.expert=2"), DENSE, "expert = 2: this model has no experts"),
        ((*CLUSTER, "trainer.tensor=4"), DENSE, "num_key_value_heads = 2: must be a multiple of the 4"),
        ((*CLUSTER, "trainer.pipeline=3"), DENSE, "num_hidden_layers = 2: must be a multiple of the 3"),
        (CLUSTER, MIXTURE | {"mlp_only_layers": [0]}, r"mlp_only_layers = \[0\]"),
        (CLUSTER, DENSE | {"rope_scaling": {"rope_type": "llama3"}}, "rope_type = llama3"),
        (CLUSTER, DENSE | {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type = linear"),
        (CLUSTER, DENSE | {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters = "),
        (CLUSTER, DENSE | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (CLUSTER, DENSE | {"sliding_window": 512}, "sliding_window = 512"),
        (CLUSTER, MIXTURE | {"sliding_window": 512, "use_sliding_window": True}, "use_sliding_window = True"),
        (CLUSTER, DENSE | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = .'sliding_att"),
        (CLUSTER, DENSE | {"hidden_act": "gelu"}, "hidden_act = gelu"),
        (CLUSTER, DENSE | {"attention_bias": True}, "attention_bias = True"),
        (CLUSTER, DENSE | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (CLUSTER, DENSE | {"logits_scaling": 8.0}, "logits_scaling = 8.0"),
        (CLUSTER, DENSE | {"hidden_size": 30}, "config.json: .*hidden size .30. is not a multiple"),
        (CLUSTER, DENSE | {"model_type": "mixtral"}, "model_type = mixtral: .* llama, qwen3, qwen3_moe"),
    ],
)
def test_what_cannot_be_is_refused_by_name(overrides: tuple[str, ...], model: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_experts(config(*overrides), model)


def test_what_a_model_leaves_out_is_as_in_transformers() -> None:
    said = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    dense = Layout.of({name: DENSE[name] for name in said}, Grid())
    assert (dense.groups, dense.head_dim, dense.tied) == (4, 8, False)
    qwen = Layout.of({name: DENSE[name] for name in said} | {"model_type": "qwen3"}, Grid())
    assert (qwen.groups, qwen.head_dim, qwen.tied) == (32, 128, False)
    mixture = complete(MIXTURE | {"rope_theta": 5e5, "sliding_window": 512})
    assert mixture["norm_topk_prob"] is False
    assert mixture["rope_parameters"]["rope_theta"] == 5e5
    assert complete(mixture) == mixture


def test_whoever_says_so_goes_without_replay() -> None:
    check_experts(config("trainer.routing_replay=false"), MIXTURE)
    check_experts(config("trainer.kind=megatron", "trainer.routing_replay=false"), MIXTURE)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("trainer.kind=megatron", "trainer.expert=2"), "must divide tensor x data x context = 1"),
        (("trainer.kind=megatron", "trainer.sequence=true"), "set trainer.tensor above 1"),
        (("trainer.expert=2", "trainer.data=2"), 'trainer.kind = "megatron"'),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(*overrides)


def test_a_body_is_read_by_its_claim_check_and_a_lost_one_refuses_the_micro_step(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    kept = blobs.put(b"\1\0\2\0")
    assert reader(blobs)(kept) == b"\1\0\2\0"
    blobs.path(kept.digest).unlink()
    with pytest.raises(MicroStepRefused, match=f"experts: blob {kept.digest} is not in"):
        reader(blobs)(kept)
