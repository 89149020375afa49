"""The paper's claims and the limits that judge them, as `config/claims.yaml` states them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cona import config
from cona.specs import Spec

Measure = Literal[
    "reference_over_offline",
    "cona_over_offline",
    "cona_over_hindsight",
    "cona_over_planners",
    "gap_to_best_known",
    "changes",
]


class LimitSpec(Spec):
    """A limit that a number keeps or not: exactly one of the three."""

    at_least: float | None = None
    """The smallest number that keeps it."""
    more_than: float | None = None
    """The number that it must exceed."""
    at_most: float | None = None
    """The largest number that keeps it."""

    @model_validator(mode="after")
    def _one(self) -> LimitSpec:
        if len(self.model_fields_set) != 1:
            raise ValueError(
                "a limit is one of at_least, more_than and at_most, e.g. {at_least: 1}"
            )
        return self

    def keeps(self, value: float) -> bool:
        """Return whether a number keeps the limit."""
        return (
            (self.at_least is not None and value >= self.at_least)
            or (self.more_than is not None and value > self.more_than)
            or (self.at_most is not None and value <= self.at_most)
        )

    def __str__(self) -> str:
        ((name, value),) = self.model_dump(exclude_none=True).items()
        return f"{name.replace('_', ' ')} {value:g}"


class ClaimSpec(Spec):
    """One claim of a paper."""

    name: str
    """Short name, e.g. C2."""
    statement: str
    """The claim in one sentence."""
    paper: str
    """What the paper says of it."""
    measure: Measure
    """What is measured here."""
    reproduced: LimitSpec | None = None
    """Limit of the strict number; without it the claim is context and is not judged."""
    same_direction: LimitSpec | None = None
    """Limit of the mild number."""

    @model_validator(mode="after")
    def _both(self) -> ClaimSpec:
        if (self.reproduced is None) != (self.same_direction is None):
            raise ValueError(
                f"claim '{self.name}': give both reproduced and same_direction, or neither"
            )
        return self


class ClaimsSpec(Spec):
    """All claims, and where README's table comes from."""

    readme_tiers: tuple[str, ...]
    """Tiers whose reference results README may show; the first that exists is shown."""
    claims: Annotated[tuple[ClaimSpec, ...], Field(min_length=1)]
    """In the order of the table."""


def load_claims() -> ClaimsSpec:
    """Return the claims of `config/claims.yaml`; raises ConfigError."""
    return config.load_file(ClaimsSpec, config.config_root() / "claims.yaml")
