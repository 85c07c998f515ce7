"""A cell with a model of some size that changes its role once each way; what its phases measured, as JSON.

A process of its own: a test's memory is everybody's.
"""

import asyncio
import json
import sys
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from bus.streams import Limits
from gyre.config import Config
from gyre.engines.torch_engine import TorchEngine
from gyre.process import share_one_arena
from gyre.rl.algorithms.port import Settings
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.torch import TorchTrainer, file_state
from tests.proxy.rig import RUN
from tests.services.agents import Crew


def model() -> LlamaForCausalLM:
    """82 MB of embeddings and little else: quick to make and to run."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40_000,
            hidden_size=512,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )


async def main(folder: Path) -> None:
    """To training and back."""
    crew = Crew(folder, config=Config())
    crew.broker.provision(RUN, Limits())
    served, trained = model(), model()
    size = sum(each.nbytes for each in served.parameters())
    await crew.start(save_tensors(file_state(served)[0], folder, "weights"))
    trainer = TorchTrainer(trained, 1.0, Settings(), AdamSettings(), share_prefixes=True, activation_bytes=0)
    async with crew.agent(0, TorchEngine(served), trainer):
        await crew.ask("t1", 0, "train")
        await crew.ask("t2", 0, "rollout")
    phases = [(each.transition, each.phase, each.resident_bytes) for each in await crew.phases("t1")]
    phases += [(each.transition, each.phase, each.resident_bytes) for each in await crew.phases("t2")]
    print(json.dumps({"size": size, "phases": phases}))  # noqa: T201  the answer


if __name__ == "__main__":
    share_one_arena()
    asyncio.run(main(Path(sys.argv[1])))
