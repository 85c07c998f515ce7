"""Harness adapters: what kind of call a request is and whose, one small file a harness.

An adapter only reads: the request as it came (headers, body), the normalised messages, and what the execution's earlier
records tell (`Memory`). No I/O, no state of its own, and never a reason to refuse a call.
"""
