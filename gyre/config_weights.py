"""The table [weights]: how new weights come from the core to the rollout engines."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gyre.config_section import Section, refuse


class WeightsSection(Section):
    """How what is published travels. What a run goes on from lies in its folder in any case."""

    transport: Literal["file", "store", "tensor", "group", "mooncake"] = "file"
    """"file": cells read the run folder, which all of them see; "store": an object store; "tensor": cells read
    the run folder and hand tensors to SGLang's servers, which need not see it; "group": SGLang's servers receive them
    from the core's process by torch.distributed; "mooncake": cells read the core's memory by Mooncake's transfer
    engine."""
    url: str = Field(default="", pattern=r"^(https?://[^@\s]+|s3://[a-z0-9.-]+(/[A-Za-z0-9._-]+)*/?)?$")
    """Of the object store: objects are PUT and fetched below it; empty: a folder of the run. What gives access is in
    the environment, since a configuration is recorded: GYRE_WEIGHTS_TOKEN (a bearer token) or, for s3://bucket/prefix,
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_REGION, and AWS_ENDPOINT_URL for other stores than AWS's."""
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
    ways = {"group": "joins a group", "tensor": "takes tensors"}
    if weights.transport in ways and (engine != "sglang" or modelled):
        rule = f'only SGLang {ways[weights.transport]}; set engine.kind = "sglang" or weights.transport = "file"'
        raise refuse("weights.transport", weights.transport, rule)
