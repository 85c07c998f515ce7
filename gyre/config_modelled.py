"""The table [modelled]: how long engines and trainers take that wait instead of computing (`model.path = "modelled"`).

Everything else of such a run is real: services, log, proxy, harness processes, claims, sums, weights on disk. All times
are wall seconds; a model of a larger system is written in its own hours, times what an hour is to last here.
"""

from typing import Annotated

from pydantic import Field

from gyre.config_section import NotNegative, Positive, Section


class ModelledSection(Section):
    """Durations of modelled compute; read only where model.path is "modelled"."""

    token_seconds: Positive = 0.02
    """One output token while every place of its cell is taken, seconds."""
    idle_gain: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.4
    """Share of that which a call saves at an empty cell; a call at load u takes 1 - idle_gain * (1 - u) of it."""
    training_seconds: Positive = 4.0
    """One batch's micro-steps at one cell, seconds; each takes its share by the executions in it."""
    update_seconds: NotNegative = 0.05
    """One optimizer update, whatever was in the batch, seconds."""
    publication_seconds: NotNegative = 0.02
    """Taking new weights into an engine that serves, seconds."""
    to_train_seconds: NotNegative = 0.02
    """Letting go of an engine when its cell goes to training, seconds."""
    to_rollout_seconds: NotNegative = 0.01
    """Bringing an engine back, weights included, when its cell returns, seconds."""
