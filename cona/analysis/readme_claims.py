"""README's claims table, from the reference results that are committed; no run is needed.

It stands between two markers. Source: issue 7; the rule of the verdicts is in `config/claims.yaml`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from cona import config
from cona.analysis.claim_specs import load_claims
from cona.analysis.groups import unique
from cona.analysis.markdown import page, table
from cona.errors import ConfigError
from cona.specs import TierSpec

BEGIN = "<!-- claims: written by `cona claims --readme README.md` -->"
END = "<!-- end of claims -->"
SHOWN = ("claim", "statement", "paper", "model", "brief", "verdict")
"""Columns of claims.csv that are read."""
NOT_TESTED = "not tested yet"


def write_readme(readme: Path, reference: Path) -> bool:
    """Put the claims table of the reference results between the markers of a README.

    Args:
        readme: the file.
        reference: folder of the reference results, with a folder for each tier.

    Returns:
        Whether the file changed.

    Raises:
        ConfigError: there is no such file, it lacks the markers, or a table cannot be read.
    """
    if not readme.is_file():
        raise ConfigError(f"{readme}: no such file; give the README that has the claims table")
    before = readme.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"{readme}: no lines '{BEGIN}' and '{END}', between which the table goes")
    after = f"{head}{BEGIN}\n\n{fragment(reference)}\n{END}{tail}"
    if after != before:
        readme.write_text(after, encoding="utf-8")
    return after != before


def fragment(reference: Path) -> str:
    """Return the table in Markdown: verdicts of the first tier that has them, else that none has.

    Args:
        reference: folder of the reference results.
    """
    for tier in load_claims().readme_tiers:
        path = reference / tier / "tables" / "claims.csv"
        if path.is_file():
            return page(_tested(_rows(path)), _origin(tier))
    return page(_untested(), _none_yet(reference))


def _rows(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)[list(SHOWN)]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path}: not a claims table: {error}; write it anew") from error


def _tested(rows: pd.DataFrame) -> str:
    records = rows.to_dict("records")
    models = unique(str(r["model"]) for r in records)
    lines = []
    for name in unique(str(r["claim"]) for r in records):
        mine = {str(r["model"]): r for r in records if r["claim"] == name}
        first = next(iter(mine.values()))
        cells = [_cell(mine[m]["brief"], mine[m]["verdict"]) if m in mine else "–" for m in models]
        lines.append([f"{name} {first['statement']}", first["paper"], *cells])
    return table(["Paper's claim", "Paper", *models], lines)


def _cell(brief: str, verdict: str) -> str:
    return brief if verdict == "context" else f"{brief}: **{verdict}**"


def _origin(tier: str) -> str:
    folder = f"results/reference/{tier}"
    return _wrapped(
        f"From [{folder}]({folder}/README.md), by a rule written before the results: "
        "[docs/claims.md](docs/claims.md); rows without a verdict are context. `≥`: the slower "
        "side never reached the target."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, width=100, break_long_words=False, break_on_hyphens=False)


def _untested() -> str:
    lines = [
        [f"{claim.name} {claim.statement}", claim.paper, f"{NOT_TESTED}¹"]
        for claim in load_claims().claims
        if claim.reproduced
    ]
    return table(["Paper's claim", "Paper", "Here"], lines)


def _none_yet(reference: Path) -> str:
    quick = [
        name for name in _tiers_without_verdicts() if (reference / name / "README.md").is_file()
    ]
    shown = [
        f" The `{name}` tier shows the whole comparison on small models, and gives none: "
        f"[what it gave here](results/reference/{name}/README.md)."
        for name in quick
    ]
    names = " or ".join(f"`{name}`" for name in reversed(load_claims().readme_tiers))
    rule = "[the rule](docs/claims.md) was written before the results."
    return _wrapped(f"¹ Verdicts need the {names} tier; {rule}{''.join(shown)}")


def _tiers_without_verdicts() -> Sequence[str]:
    return [n for n in config.names(TierSpec) if not config.load(TierSpec, n).gives_verdicts]
