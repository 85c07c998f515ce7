"""Pure numerics: advantages, objective, packing. No I/O, clocks, unseeded randomness or model may be in here.

Only `objective` imports torch; the rest must stay importable without it.
"""
