"""What a cell's process loads."""

from pathlib import Path

from gyre.config import Config
from services.place import Place
from services.replica import load_replica


def test_a_standalone_engine_loads_no_trainer(tmp_path: Path) -> None:
    config = Config.of({"model": {"path": "modelled"}, "cells": {"count": 1, "standalone": 1}})
    place = Place("cell", "cell-a", "r", tmp_path, "", config)
    cell, standalone = (load_replica(place, index) for index in range(2))
    assert cell.trainer is not None
    assert standalone.trainer is None
