"""SGLang as the rollout engine, by its HTTP API (0.5.23); SGLang itself is imported nowhere, and may live elsewhere.

`engine` fulfils the port over `client`; `server` starts and watches a server, or names one that runs already.
"""
