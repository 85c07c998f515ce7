"""Megatron-core (0.16.1) as the trainer: one process a rank, tensor and pipeline parallel inside a cell.

`trainer` fulfils the port and imports no megatron; `rank` is a rank's process; `layout` is the way between the names of
Hugging Face and the ranks' own.
"""
