"""Where untrusted commands run, bounded: a port and its adapters.

No bus, task, reward or policy may be in here: a sandbox knows a command, its folders and its limits.
"""
