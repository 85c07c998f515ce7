"""FSDP2 as the trainer of a cell of several ranks: each holds a part of every tensor, and computes rows of its own.

`trainer` fulfils the port; `rank` is a rank's process; `sharing` says who holds and who computes what.
"""
