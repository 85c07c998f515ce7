"""A run in virtual time: the deciders of `gyre.core` as they are, everything outside them modelled.

Nothing here waits, reads a clock or draws a number of its own: the generator is passed in, time is a number. A rule of
scheduling does not belong here; what is modelled is how long engines, trainers and executions take.
"""
