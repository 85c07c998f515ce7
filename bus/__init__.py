"""How it is said: topology, publishing, reading, work queues, blobs, archives and the embedded server on JetStream.

The bus knows sequences, not meanings: no rule of the domain, no engine, trainer or proxy may be here, and nothing here
imports `gyre` or `services`. Import the module you need; this package itself imports nothing.
"""
