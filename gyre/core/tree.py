"""The trajectory tree of one execution: a fold over what CALL holds of it, alone (design §7, Tree).

A node is one record. Its context is its parent's path cut to `prefix_tokens`, then its own input; contexts that
diverge branch, and outputs that were sampled apart stay apart even where their text is the same. A token is the
policy's where a node's output holds it: text that the policy once wrote and that came back as input is input.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

from pydantic import Field, NonNegativeInt

from gyre.core.admission import Span, path
from schemas.base import Float32s, Int32s, Model, Token, is_none
from schemas.calls import DeliveryCorrected, Finish, ModelCallRecorded, VersionSpan
from schemas.refs import BlobRef

_TOKEN_BYTES = 4
Called = ModelCallRecorded | DeliveryCorrected
"""What CALL holds."""


class Node(Model):
    """One request record, as trees, admission and analysis need it; names as in `ModelCallRecorded`."""

    call: Token
    index: NonNegativeInt
    parent: Token | None
    prefix_tokens: NonNegativeInt
    input_ids: Int32s
    output_ids: Int32s
    logprobs: Float32s
    versions: tuple[VersionSpan, ...]
    finish: Finish
    kind: Literal["turn", "compaction", "auxiliary"]
    thread: str
    system_digest: str
    delivered: bool
    experts: BlobRef | None = Field(default=None, exclude_if=is_none)

    @property
    def context(self) -> int:
        """Tokens of the exact input that the engine was given."""
        return self.prefix_tokens + len(self.input_ids) // _TOKEN_BYTES

    @property
    def length(self) -> int:
        """Tokens of the whole path: context and output."""
        return self.context + len(self.output_ids) // _TOKEN_BYTES


_FIELDS = set(Node.model_fields)
"""One set for all nodes: there are many of them."""


@dataclass(frozen=True, slots=True)
class Tree:
    """All records of an execution, by call, in the order of CALL."""

    execution: str
    nodes: dict[str, Node] = field(default_factory=dict)
    rejected: tuple[str, ...] = ()
    """Calls whose records do not fit on the tree (an unknown parent, more prefix than there is)."""


class _Body(Model):
    """The canonical form of a tree, v1."""

    v: Literal[1] = 1
    execution: Token
    nodes: tuple[Node, ...]
    rejected: tuple[str, ...]


def evolve(tree: Tree, event: Called) -> Tree:
    """Take in one event of CALL; a repeated record changes nothing, one that does not fit is kept as rejected."""
    if isinstance(event, DeliveryCorrected):
        return _corrected(tree, event)
    return _grown(tree, event)


def _corrected(tree: Tree, event: DeliveryCorrected) -> Tree:
    node = tree.nodes.get(event.call)
    if node is None or event.execution != tree.execution or node.delivered == event.delivered:
        return tree
    return replace(tree, nodes={**tree.nodes, event.call: node.model_copy(update={"delivered": event.delivered})})


def _grown(tree: Tree, record: ModelCallRecorded) -> Tree:
    if record.execution != tree.execution or record.call in tree.nodes or record.call in tree.rejected:
        return tree
    parent = tree.nodes.get(record.parent) if record.parent is not None else None
    if record.prefix_tokens > (parent.length if parent else 0) or (record.parent is not None and parent is None):
        return replace(tree, rejected=(*tree.rejected, record.call))
    fields = {name: getattr(record, name) for name in Node.model_fields}
    node = Node.model_construct(_FIELDS, **fields)
    return replace(tree, nodes={**tree.nodes, record.call: node})


def fold(execution: str, called: Iterable[Called]) -> Tree:
    """The tree that these events of CALL make, in their order."""
    tree = Tree(execution)
    for event in called:
        tree = evolve(tree, event)
    return tree


def path_ids(tree: Tree, call: str, tokens: int | None = None) -> Int32s:
    """Token ids of a call's whole path, or of its first `tokens`. Raises ValueError for an unknown call."""
    ids = b"".join(_own(tree.nodes[span.call], span) for span in path(tree.nodes, call))
    return ids if tokens is None else ids[: tokens * _TOKEN_BYTES]


def context_ids(tree: Tree, call: str) -> Int32s:
    """The exact input that the engine was given for this call."""
    return path_ids(tree, call, tree.nodes[call].context)


def sampled(tree: Tree, call: str) -> bytes:
    """Provenance by position: a byte for each token of a call's path, 1 where the policy sampled it right there."""
    marks = bytearray()
    for span in path(tree.nodes, call):
        node = tree.nodes[span.call]
        own = bytes(len(node.input_ids) // _TOKEN_BYTES) + b"\1" * (len(node.output_ids) // _TOKEN_BYTES)
        marks += own[span.start : span.stop]
    return bytes(marks)


def to_bytes(tree: Tree) -> bytes:
    """The canonical body: JSON, nodes by index, arrays packed; equal trees have equal bytes."""
    nodes = tuple(sorted(tree.nodes.values(), key=lambda node: (node.index, node.call)))
    body = _Body(execution=tree.execution, nodes=nodes, rejected=tuple(sorted(tree.rejected)))
    return body.model_dump_json().encode()


def from_bytes(body: bytes) -> Tree:
    """A tree from its body. Raises pydantic.ValidationError for anything else."""
    read = _Body.model_validate_json(body)
    return Tree(read.execution, {node.call: node for node in read.nodes}, read.rejected)


def digest(tree: Tree) -> str:
    """SHA-256 of the canonical body."""
    return sha256(to_bytes(tree)).hexdigest()


def record_digest(event: Called) -> str:
    """SHA-256 of the body of a record or a correction, the JSON of the event."""
    return sha256(event.model_dump_json().encode()).hexdigest()


def records_digest(digests: Iterable[str]) -> str:
    """What `RecordsSealed` says of what CALL holds of the execution: over its digests, in their order."""
    return sha256("\n".join(digests).encode()).hexdigest()


def _own(node: Node, span: Span) -> Int32s:
    return (node.input_ids + node.output_ids)[span.start * _TOKEN_BYTES : span.stop * _TOKEN_BYTES]
