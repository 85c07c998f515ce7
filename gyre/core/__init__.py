"""Pure state machines and pure rules.

No input or output, clock, new id, unseeded randomness or torch; imports nothing of ours but `schemas` and
`gyre.errors`. What happened outside, time and chance included, enters only as events.
"""
