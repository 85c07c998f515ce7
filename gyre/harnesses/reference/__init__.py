"""The reference harness: a stand-alone agent program, standard library only.

Nothing here may import another part of the project (it runs as a black box that knows a base URL and a key), and no
other part may import from here: it is started by its path, `python -I -S agent.py`.
"""
