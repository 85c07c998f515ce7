"""How preserved work is scored: a port and its adapters.

No bus, reward policy, retry or knowledge of how an execution went may be in here: a score depends on the state alone.
"""
