"""Kubernetes' own JSON schemas, each read once."""

from functools import cache
from typing import Any

import pytest

utils = pytest.importorskip("kubernetes_validate.utils", reason="the API's schemas come with kubernetes-validate")

from jsonschema import Draft202012Validator  # noqa: E402 - kubernetes-validate brings it along
from referencing import Registry, Resource  # noqa: E402

VERSION = "1.33.0"


def trouble(found: dict[str, Any]) -> str:
    """Why the API does not take an object: the first thing that its schema does not know or allow; empty: it does."""
    group, _, version = found["apiVersion"].rpartition("/")
    parts = (found["kind"].lower(), group.partition(".")[0], version)
    error = next(iter(_validator("-".join(each for each in parts if each)).iter_errors(found)), None)
    return f"{'.'.join(map(str, error.path))}: {error.message[:300]}" if error else ""


@cache
def _validator(name: str) -> Any:
    schema = _read(name)
    registry = Resource.from_contents(schema) @ _definitions()
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions() -> Any:
    registry: Registry[Any] = Registry()
    return Resource.from_contents(_read("_definitions")) @ registry


def _read(name: str) -> Any:
    return utils.schema_contents(f"kubernetes-json-schema/v{VERSION}-local-strict/{name}.json", VERSION)
