"""What a cell's process loads."""

import sys
from pathlib import Path

import pytest

from gyre.config import Config
from gyre.errors import ConfigError
from services.place import Place
from services.replica import load_replica, modelled_trainer, objective_settings

BOUNDS = (-1.0, 0.0, 5e-324, 1e-46, 2.0**-127, 2.0**-126, 0.5, 1 - 2.0**-53, 1.0, 1 + 2.0**-52, 2.0, sys.float_info.max)


def test_a_standalone_engine_loads_no_trainer(tmp_path: Path) -> None:
    config = Config.of({"model": {"path": "modelled"}, "cells": {"count": 1, "standalone": 1}})
    place = Place("cell", "cell-a", "r", tmp_path, "", config)
    cell, standalone = (load_replica(place, index) for index in range(2))
    assert cell.trainer is not None
    assert standalone.trainer is None


@pytest.mark.parametrize("value", BOUNDS)
@pytest.mark.parametrize(
    "field",
    [
        *(f"objective.{each}" for each in ("ratio_low", "ratio_high", "weight_cap", "loss_cap")),
        *(f"optimizer.{each}" for each in ("lr", "eps", "weight_decay", "clip")),
        *(f"optimizer.betas.{each}" for each in range(2)),
    ],
)
def test_what_a_configuration_takes_its_cells_take(field: str, value: float) -> None:
    section, name, *place = field.split(".")
    betas = [0.9, 0.95]
    if place:
        betas[int(place[0])] = value
    try:
        config = Config.of({section: {name: betas if place else value}})
    except ConfigError:
        return
    objective_settings(config)
    modelled_trainer(config)
