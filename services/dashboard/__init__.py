"""The dashboard: one page over a run's log, live or from an archive; read-only.

It holds what a browser is given and how: rows kept of a log, panels summed from them, and the HTTP face. No rule of
training or scheduling belongs here, and nothing here appends to a log.
"""
