"""Tables of one tier: CSV with every number, Markdown with what a reader needs.

Source: method.md 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cona.analysis import (
    table_attribution,
    table_gap,
    table_speedup,
    table_summary,
    table_ttp,
)
from cona.analysis.load import Run, load_runs


def write_tables(results: Path, tier: str) -> list[Path]:
    """Write every table of a tier under ``results/<tier>/tables/``.

    Args:
        results: root of the results.
        tier: name of the tier.

    Returns:
        The files written.

    Raises:
        RunError: there is no finished run, or the runs cannot be compared.
    """
    runs = load_runs(results, tier)
    folder = results / tier / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    return [*_write_csv(folder, runs), *_write_markdown(folder, tier, runs)]


def _write_csv(folder: Path, runs: Sequence[Run]) -> list[Path]:
    tables: Mapping[str, tuple[Sequence[str], list[dict[str, Any]]]] = {
        "ttp": (table_ttp.COLUMNS, table_ttp.records(runs)),
        "speedup": (table_speedup.COLUMNS, table_speedup.records(runs)),
        "speedup_by_seed": (table_speedup.PAIR_COLUMNS, table_speedup.pair_records(runs)),
        "oracle_gap": (table_gap.COLUMNS, table_gap.records(runs)),
        "attribution": (table_attribution.COLUMNS, table_attribution.records(runs)),
        "summary": (table_summary.COLUMNS, table_summary.records(runs)),
    }
    paths = []
    for name, (columns, records) in tables.items():
        path = folder / f"{name}.csv"
        pd.DataFrame(records, columns=list(columns)).to_csv(path, index=False)
        paths.append(path)
    return paths


def _write_markdown(folder: Path, tier: str, runs: Sequence[Run]) -> list[Path]:
    texts = {
        "ttp": table_ttp.markdown(tier, runs),
        "speedup": table_speedup.markdown(tier, runs),
        "oracle_gap": table_gap.markdown(tier, runs),
        "attribution": table_attribution.markdown(tier, runs),
        "summary": table_summary.markdown(tier, runs),
        "switches": table_summary.switches_markdown(tier, runs),
    }
    paths = []
    for name, text in texts.items():
        path = folder / f"{name}.md"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
