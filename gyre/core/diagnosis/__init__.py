"""What is wrong with a run, from its log alone: `gyre doctor`.

One file a family of faults. Each family folds the events that it names, keeps what is under way and never the log, and
says at any moment what it found. No thresholds of its own taste: `limits` has them, from the run's configuration. What
asks a clock, a server or a file does not belong here.
"""
