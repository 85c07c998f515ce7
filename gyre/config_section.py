"""What every table of the configuration shares: its kinds of number, its model, and how a rule refuses a value."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def refuse(key: str, value: object, rule: str) -> PydanticCustomError:
    """The error of a validator: dotted key, value found, and the rule that it breaks."""
    return PydanticCustomError("rule", "{rule}", {"key": key, "value": repr(value), "rule": rule})


class Section(BaseModel):
    """A table of the file: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, use_attribute_docstrings=True)
