"""What gyre means and does, without a bus: pure cores, numerics, and ports with their adapters.

Nothing here imports `bus` or `services`. Only engines, trainers and the objective may import torch, and no package
imports another when it is itself imported: a scheduler starts in well under a second.
"""
