"""Turns titles into slugs."""


def slug(title, limit=40):
    """Lower-case words of a title, joined by dashes, at most `limit` characters."""
    words = title.lower().split(" ")
    return "-".join(words)[:limit]


def unique(title, taken):
    """A slug that is not in `taken`: a number is added where it must be."""
    found, number = slug(title), 1
    while found in taken:
        number += 1
        found = slug(title) + "-" + str(number)
    return found
