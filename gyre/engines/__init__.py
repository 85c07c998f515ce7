"""Rollout engines: token ids in, token ids and log-probabilities out. No text, no chat, no tree, no bus in here.

Only `torch_engine` and its parts (`batch`, `decoder`, `forward`, `kv`, `prefix`, `sampling`, `weights`) may import
torch: a proxy imports `port` and `remote` alone.
"""
