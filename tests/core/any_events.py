"""Any events, in any order: made from the schemas' own fields, of so few names and numbers that they meet."""

from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt
from hypothesis import strategies as st

from schemas.base import Model, pack_floats, pack_ints
from schemas.calls import ModelCallRecorded
from schemas.envelope import Event
from schemas.upcast import event_models

NAMES = {
    "execution": ("x0-0", "x0-1", "x1-0", "e0-0", "x0-9999999999999999", "other"),
    "group": ("g0", "g1", "other"),
    "evaluation": ("e0", "e1"),
    "timer": ("supply-1", "retry-t1", "other"),
    "transition": ("t1", "t2"),
    "digest": ("0" * 64, "1" * 64),
}
"""What may stand in a field (or in one whose name ends so), where the text itself says something."""
CHOICES: dict[Any, tuple[Any, ...]] = {
    int: (0, 1, 2, 1 << 62),
    float: (0.0, 0.5, 1e300, -0.5, -1e300),
    bool: (False, True),
    bytes: (b"", b"\0\1"),
    dict: ({},),
    type(None): (None,),
}
"""Two of any larger number have no sum."""


def events(kinds: Iterable[type[Any]] = ()) -> st.SearchStrategy[list[Event]]:
    """Events of these types (of all), few types at a time, so that those meet which concern one another."""
    chosen = frozenset(kinds)
    known = [model for model in event_models().values() if model in chosen or not chosen]
    few = st.lists(st.sampled_from(known), min_size=1, max_size=8, unique=True)
    return few.flatmap(lambda some: st.lists(st.one_of([_model(each) for each in some]), min_size=10, max_size=40))


@cache
def _model(model: type[Model]) -> st.SearchStrategy[Any]:
    fields = {name: _value(name, info.annotation, info.metadata) for name, info in model.model_fields.items()}
    make = _record if model is ModelCallRecorded else model
    return st.fixed_dictionaries(fields).map(lambda values: make(**values))


def _record(**fields: Any) -> ModelCallRecorded:
    """Its arrays tell of the same tokens, and of few."""
    versions = tuple(span for span in fields["versions"] if span.tokens < 4)
    outputs = sum(span.tokens for span in versions)
    arrays = {"output_ids": pack_ints([2] * outputs), "logprobs": pack_floats([-1.0] * outputs)}
    return ModelCallRecorded(**fields | arrays | {"versions": versions, "input_ids": pack_ints([1])})


def _value(name: str, kind: Any, limits: Iterable[Any]) -> st.SearchStrategy[Any]:
    of, parts = get_origin(kind), get_args(kind)
    if of is Annotated:
        return _value(name, parts[0], (*limits, *kind.__metadata__))
    if of is Literal:
        return st.sampled_from(parts)
    if of in (Union, UnionType):
        return st.one_of([_value(name, part, limits) for part in parts])
    if of is tuple:
        return st.lists(_value(name, parts[0], ()), max_size=2).map(tuple)
    if isinstance(kind, type) and issubclass(kind, Model):
        return _model(kind)
    return st.sampled_from([value for value in _choices(name, of or kind) if _within(value, limits)])


def _choices(name: str, kind: Any) -> tuple[Any, ...]:
    return CHOICES.get(kind) or NAMES.get(name.rpartition("_")[2], ("a", "b"))


def _within(value: Any, limits: Iterable[Any]) -> bool:
    """Within the bounds of a number; the pattern of a text is none."""
    above = all(value >= each.ge for each in limits if isinstance(each, Ge))
    return above and all(value > each.gt for each in limits if isinstance(each, Gt))
