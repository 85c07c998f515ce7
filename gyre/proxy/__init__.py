"""Protocol translation and token bookkeeping of model calls, sans I/O: bodies in, plans and records out.

No socket, clock, bus or engine may be in here: `services` carries plans to an engine and records to the log. The parts
import `gyre.core` and `schemas` only.
"""
