"""`python -m services.cli`: the command without its script."""

from services.cli.app import app

app()
