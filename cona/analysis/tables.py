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
    table_profile,
    table_sensitivity,
    table_speedup,
    table_summary,
    table_surface,
    table_ttp,
)
from cona.analysis.load import Run, load_runs
from cona.analysis.sensitivity import Sensitivity, sensitivities
from cona.runlog import write_atomic


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
    noise = sensitivities(runs)  # replays: once for both
    return [*_write_csv(folder, runs, noise), *_write_markdown(folder, tier, runs, noise)]


def _write_csv(folder: Path, runs: Sequence[Run], noise: Sequence[Sensitivity]) -> list[Path]:
    tables: Mapping[str, tuple[Sequence[str], list[dict[str, Any]]]] = {
        "ttp": (table_ttp.COLUMNS, table_ttp.records(runs)),
        "speedup": (table_speedup.COLUMNS, table_speedup.records(runs)),
        "speedup_by_seed": (table_speedup.PAIR_COLUMNS, table_speedup.pair_records(runs)),
        "oracle_gap": (table_gap.COLUMNS, table_gap.records(runs)),
        "surface": (table_surface.COLUMNS, table_surface.records(runs)),
        "profile": (table_profile.COLUMNS, table_profile.records(runs)),
        "sensitivity": (table_sensitivity.COLUMNS, table_sensitivity.records(noise)),
        "attribution": (table_attribution.COLUMNS, table_attribution.records(runs)),
        "summary": (table_summary.COLUMNS, table_summary.records(runs)),
    }
    paths = []
    for name, (columns, records) in tables.items():
        path = folder / f"{name}.csv"
        write_atomic(path, pd.DataFrame(records, columns=list(columns)).to_csv(index=False))
        paths.append(path)
    return paths


def _write_markdown(
    folder: Path, tier: str, runs: Sequence[Run], noise: Sequence[Sensitivity]
) -> list[Path]:
    texts = {
        "ttp": table_ttp.markdown(tier, runs),
        "speedup": table_speedup.markdown(tier, runs),
        "oracle_gap": table_gap.markdown(tier, runs),
        "surface": table_surface.markdown(tier, runs),
        "profile": table_profile.markdown(tier, runs),
        "sensitivity": table_sensitivity.markdown(tier, runs, noise),
        "attribution": table_attribution.markdown(tier, runs),
        "summary": table_summary.markdown(tier, runs),
        "switches": table_summary.switches_markdown(tier, runs),
    }
    paths = []
    for name, text in texts.items():
        path = folder / f"{name}.md"
        write_atomic(path, text)
        paths.append(path)
    return paths
