"""What all specifications share: how they are validated, and the types of their values."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

LARGEST_COUNT = 2**40
"""Whole numbers up to it, and sums of thousands of them, are exact as floats."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]*$", max_length=100)]
"""A name that is also a folder's and a word in a shell's command."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
NonNegativeCount = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]


def _not_tiny(value: float) -> float:
    if value < 1e-30:
        raise PydanticCustomError("tiny", "Input should be at least 1e-30")
    return value


Positive = Annotated[float, Field(gt=0, le=1e30), AfterValidator(_not_tiny)]
"""Far from both ends of what a float can hold, so that products of a few are numbers too."""
NonNegative = Annotated[float, Field(ge=0, le=1e30)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Spec(BaseModel):
    """Base of all specifications: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
