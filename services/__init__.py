"""Who does it: a process kind a module, or a folder where it has parts; the command line in `cli`.

The only place with clocks, new ids, sockets and signals; rules of the domain do not belong here but in `gyre.core`.
"""
