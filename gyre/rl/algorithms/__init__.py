"""One objective a file, all behind `gyre.rl.algorithms.port`. Only `clip` may be imported without torch.

A file defines `losses`: from targets and settings to one loss a target, whose gradient flows through `log_pi` alone.
"""
