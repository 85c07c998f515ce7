"""A harness that decides nothing: so many dependent model calls of drawn length. Standard library only."""
