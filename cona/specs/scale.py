"""Scales: other sizes of any tier."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from cona.specs.base import Name, Spec


class ScaleSpec(Spec):
    """Another size of any tier: its settings replace the tier's own, and all others stay."""

    name: Name
    """Name behind the tier's, as in paper@tiny; results go to results/<tier>-<name>/."""
    description: str
    """One line for `cona tiers`."""
    gives_verdicts: bool = False
    """Whether the claims table may still judge, where the tier lets it."""
    leave_out: tuple[str, ...] = ()
    """Policies that the scale cannot run; a tier without them is not changed."""
    settings: dict[str, Any]
    """Keys and values of a tier; an empty mapping replaces one, another is merged."""

    @model_validator(mode="after")
    def _keeps_its_own(self) -> ScaleSpec:
        own = sorted({"name", "description", "gives_verdicts"} & set(self.settings))
        if own:
            raise ValueError(f"settings.{own[0]}: a scale says so itself; move '{own[0]}' up")
        return self
