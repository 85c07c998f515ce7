"""Programs that grade inside a sandbox, copied into the tests they serve: standard library only, nothing of ours."""

GRADED = ("swe", "nl2repo")
"""Kinds of tasks whose tests are these."""
