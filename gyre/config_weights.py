"""The table [weights]: how new weights come from the core to the rollout engines."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gyre.config_section import Section, refuse


class WeightsSection(Section):
    """How what is published travels. What a run goes on from lies in its folder in any case."""

    transport: Literal["file", "store", "group", "mooncake"] = "file"
    """"file": cells read the run folder, which all of them see; "store": an object store; "group": SGLang's servers
    receive them from the core's process by torch.distributed; "mooncake": cells read the core's memory by Mooncake's
    transfer engine."""
    url: str = Field(default="", pattern=r"^(https?://[^@\s]+)?$")
    """Of the object store: objects are PUT and fetched below it; empty: a folder of the run. A bearer token is given by
    GYRE_WEIGHTS_TOKEN: a configuration is recorded."""
    delta: bool = False
    """Send what changed since the version before, bit for bit, where an engine's cell has that one; else all of it."""
    backend: Literal["nccl", "gloo"] = "nccl"
    """Of the group; "gloo" without GPUs."""
    protocol: Literal["rdma", "tcp", "efa"] = "rdma"
    """Of Mooncake."""
    device: str = ""
    """Network devices that Mooncake uses, with commas between; empty: it chooses."""

    @model_validator(mode="after")
    def _each_field_is_of_its_transport(self) -> Self:
        owners = {"url": "store", "backend": "group", "protocol": "mooncake", "device": "mooncake"}
        for field, transport in owners.items():
            value = getattr(self, field)
            if self.transport != transport and value != type(self).model_fields[field].default:
                rule = f'is of another transport; set weights.transport = "{transport}" or leave it out'
                raise refuse(f"weights.{field}", value, rule)
        if self.transport == "group" and self.delta:
            rule = "SGLang receives whole tensors by its group; set weights.delta = false or another weights.transport"
            raise refuse("weights.delta", True, rule)
        return self


def check_receivers(weights: WeightsSection, engine: str, *, modelled: bool) -> None:
    """The engines can receive by the chosen transport. Raises a validator's error."""
    if weights.transport == "group" and (engine != "sglang" or modelled):
        rule = 'only SGLang\'s servers join a group; set engine.kind = "sglang" or weights.transport = "file"'
        raise refuse("weights.transport", "group", rule)
