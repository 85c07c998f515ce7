"""References to bodies that live outside the log: blobs, weights, preserved workspaces."""

from pydantic import NonNegativeInt

from schemas.base import Digest, Model


class BlobRef(Model):
    """A claim check: the body with this digest lies at this address."""

    digest: Digest
    size: NonNegativeInt
    """Bytes."""
    address: str
    """`blob:<digest>` in the run's blob store, or a URL of an object store."""


class WeightsRef(Model):
    """One policy version's parameters as a safetensors file, named by its digest: a version never names two."""

    digest: Digest
    size: NonNegativeInt
    """Bytes."""
    address: str
    """Path relative to the run folder, or a URL of an object store."""


class StateRef(Model):
    """A preserved workspace, fixed at closure: scoring and regrading read this and nothing else."""

    digest: Digest
    size: NonNegativeInt
    """Bytes of the archive."""
    address: str
    """`blob:<digest>`: a tar archive in the run's blob store."""
