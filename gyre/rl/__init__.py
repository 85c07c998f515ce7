"""Pure numerics: advantages, objective, packing. No I/O, clocks, unseeded randomness or model may be in here.

Only `objective` and `algorithms` (but for `algorithms.clip`) import torch; the rest must stay importable without it.
"""
