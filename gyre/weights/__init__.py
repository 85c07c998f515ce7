"""How published weights come from the core to the rollout engines: the port, its transports, and deltas.

Nothing here knows the log: whoever uses it says which weights, and tells nobody of them before they are durable.
"""
