"""Models that ship with gyre, each a folder with its weights and the script that made them. No engine, no trainer."""
