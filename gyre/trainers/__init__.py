"""Trainers: port, torch implementation, reduction over cells, checkpoints. No bus and no engine in here.

`port` imports no torch; the other modules do.
"""
