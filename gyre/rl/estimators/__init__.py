"""One advantage estimator a file: `centre_and_scale` of a group's valid rewards; an advantage is (r - centre) / scale.

Choosing among them, excluded executions and groups without spread: `gyre.rl.advantages`.
"""
