"""Tasks as folders: loading them and generating the small word tasks. Nothing here runs or grades a task."""
