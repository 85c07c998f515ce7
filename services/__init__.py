"""Who does it: one process kind a module, and the command line.

The only place with clocks, new ids, sockets and signals; rules of the domain do not belong here but in `gyre.core`.
"""
