"""Where a delivered message stands, from its acknowledgement subject."""

from nats.aio.msg import Msg

_SHORT_FORM = 9


def positions(message: Msg) -> tuple[int, int, int]:
    """(deliveries, stream sequence, consumer sequence); the long form of the subject is left to nats-py."""
    tokens = message.reply.split(".")
    if len(tokens) == _SHORT_FORM:
        return int(tokens[4]), int(tokens[5]), int(tokens[6])
    found = message.metadata
    return found.num_delivered, found.sequence.stream, found.sequence.consumer
