"""What may be said: event models, ids, the envelope, versions and upcasters.

Nothing here does input or output, reads a clock, or imports another package of gyre.
"""
