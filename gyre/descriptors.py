"""Descriptors of this process."""

import resource


def take_descriptors() -> None:
    """As many as this process may have: each connection takes one or two, and what one takes no other lacks then."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
