"""What stands in a tier's folder already: pages of tables and figures, in the report's order."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cona.errors import RunError
from cona.report.markdown_html import Page, to_page


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a page of tables stands in the report."""

    name: str
    """Name of the file without its suffix."""
    words: str
    """What the table of contents calls it."""
    is_open: bool = False
    """Shown at once; others open by a click."""
    is_of_runs: bool = True
    """Made from runs; others are of the cost model alone."""


FIRST = (Place(name="claims", words="Claims", is_open=True),)
"""Before the figures."""
SECOND = (
    Place(name="ttp", words="Time to perplexity", is_open=True),
    Place(name="speedup", words="Speed-up", is_open=True),
    Place(name="surface", words="Speed-up by batch size"),
    Place(name="profile", words="Performance profile"),
    Place(name="attribution", words="Attribution", is_open=True),
    Place(name="sensitivity", words="Sensitivity to noise"),
    Place(name="oracle_gap", words="Gap to the oracle"),
)
"""Between the figures and the runs; pages that no list names come after these."""
LAST = (
    Place(name="summary", words="Runs"),
    Place(name="switches", words="Switches"),
    Place(name="planners", words="Planners", is_of_runs=False),
)
"""After the costs."""
OWN_SECTIONS = frozenset({"provenance"})
"""Pages that the report shows as sections of its own."""
FIGURES = (
    "perplexity_over_clock",
    "speedup_over_target",
    "speedup_surface",
    "performance_profile",
    "attribution",
    "gns_sensitivity",
    "strategy_timeline",
    "gns_over_samples",
)
"""Names of figures in order; others come after them."""
_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A page of tables at its place."""

    place: Place
    page: Page


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure and what its caption says."""

    name: str
    title: str
    caption: str
    url: str
    """The image itself, as a data URL."""


def pages(folder: Path) -> list[Shown]:
    """Return the pages ``*.md`` of a folder in the report's order; unknown ones come second.

    Raises:
        RunError: a page cannot be read.
    """
    paths = sorted(folder.glob("*.md"))
    found = {path.stem: path for path in paths if path.stem not in OWN_SECTIONS}
    known = {place.name for place in (*FIRST, *SECOND, *LAST)}
    others = [Place(name=n, words=n.replace("_", " ")) for n in found if n not in known]
    order = [p for p in (*FIRST, *SECOND, *others, *LAST) if p.name in found]
    return [Shown(place=p, page=to_page(_text(found[p.name]), p.words)) for p in order]


def split(shown: Sequence[Shown]) -> tuple[list[Shown], list[Shown], list[Shown]]:
    """Return the pages before the figures, those after them, and those after the costs."""
    first = [one for one in shown if one.place in FIRST]
    last = [one for one in shown if one.place in LAST]
    return first, [one for one in shown if one not in first and one not in last], last


def figures(folder: Path) -> list[Figure]:
    """Return the figures of a folder in order; of one in both formats, the SVG.

    The page has titles and captions as text, and so does a PNG: the SVG does not repeat them.

    Raises:
        RunError: a figure cannot be read.
    """
    found = {p.stem: p for suffix in (".png", ".svg") for p in sorted(folder.glob(f"*{suffix}"))}
    order = [*(n for n in FIGURES if n in found), *sorted(set(found) - set(FIGURES))]
    return [_figure(found[name]) for name in order]


def _figure(path: Path) -> Figure:
    text = path.with_suffix(".txt")
    title, _, caption = (_text(text) if text.exists() else path.stem).partition("\n")
    content = base64.b64encode(_bytes(path)).decode()
    return Figure(
        name=path.stem,
        title=title.removesuffix("."),
        caption=caption.replace("`", "").strip(),
        url=f"data:{_TYPES[path.suffix]};base64,{content}",
    )


def _text(path: Path) -> str:
    return _bytes(path).decode(errors="replace")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; write it again with `cona tables`") from error
