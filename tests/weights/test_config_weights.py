"""What [weights] may say."""

import pytest

from gyre.config import Config
from gyre.errors import ConfigError

SGLANG = "engine.kind=sglang"


def test_files_are_the_default_and_sglang_may_have_a_group() -> None:
    assert Config.load(None).weights.transport == "file"
    chosen = Config.load(None, [SGLANG, "weights.transport=group", "weights.backend=gloo"]).weights
    assert (chosen.transport, chosen.backend) == ("group", "gloo")


def test_a_run_from_before_there_was_a_choice_reads_files() -> None:
    table = {name: each for name, each in Config.load(None).table().items() if name != "weights"}
    assert Config.recorded(table).weights == Config.load(None).weights


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["weights.transport=group"], "weights.transport = 'group': only SGLang joins a group; set engine.kind"),
        ([SGLANG, "model.path=modelled", "weights.transport=group"], "only SGLang joins a group"),
        (["weights.transport=tensor"], "weights.transport = 'tensor': only SGLang takes tensors; set engine.kind"),
        ([SGLANG, "model.path=modelled", "weights.transport=tensor"], "only SGLang takes tensors"),
        ([SGLANG, "weights.transport=tensor", "weights.backend=gloo"], "weights.backend = 'gloo': is of another"),
        ([SGLANG, "weights.transport=group", "weights.delta=true"], "weights.delta = True: SGLang receives whole"),
        (["weights.backend=gloo"], "weights.backend = 'gloo': is of another transport"),
        (["weights.url=http://store/bucket"], "weights.url = 'http://store/bucket': is of another transport"),
        (["weights.transport=store", "weights.device=mlx5_0"], "weights.device = 'mlx5_0': is of another transport"),
        (["weights.transport=store", "weights.url=http://user:word@store"], "weights.url"),
        (["weights.transport=pigeon"], "weights.transport"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(None, overrides)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
