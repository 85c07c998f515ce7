"""For all tests: hypothesis judges what is found, not how fast a busy machine finds it."""

from hypothesis import settings

settings.register_profile("gyre", deadline=None)
settings.load_profile("gyre")
