"""What `gyre tasks` does with folders of tasks before a run."""
