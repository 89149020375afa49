"""Write the report of a tier: one HTML file that needs no network and no other file.

Source: architecture.md, Style 7: everything says what a second is and whose it is.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cona.analysis import table_provenance
from cona.analysis.groups import METHOD, by_model, unique
from cona.analysis.load import Run, load_runs
from cona.analysis.notes import clock_sentence, num_seeds, proxy_sentences
from cona.report import caveats, costs, decisions, timelines
from cona.report.markdown_html import LONG_CELL, inline
from cona.report.shapes import Table
from cona.report.shown import figures, pages, split
from cona.runlog import write_atomic
from cona.specs import TierSpec

NAME = "report.html"


def write_report(results: Path, tier: TierSpec) -> Path:
    """Write ``results/<tier>/report.html``.

    Args:
        results: root of the results.
        tier: whose runs, tables and figures are shown.

    Returns:
        The file written.

    Raises:
        RunError: there is no finished run, or the runs cannot be compared.
        StorageError: the file cannot be written.
    """
    folder = results / tier.name
    path = folder / NAME
    write_atomic(path, html(tier, folder, load_runs(results, tier.name)))
    return path


def html(tier: TierSpec, folder: Path, runs: Sequence[Run]) -> str:
    """Return the report as text.

    Args:
        tier: whose report it is.
        folder: where its `tables` and `figures` are; those that are not there are left out.
        runs: its finished runs, of at least one model.
    """
    template = _templates().get_template("report.html")
    return template.render(_about(tier, runs) | _written(folder) | _of_runs(runs))


def _about(tier: TierSpec, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "tier": tier,
        "num_seeds": num_seeds(runs),
        "sentences": [clock_sentence(runs), *proxy_sentences(runs)],
        "labels": labels(runs),
        "caveats": caveats.of_runs(runs),
        "tiers": caveats.of_tiers(tier),
        "facts": table_provenance.facts(tier, runs),
    }


def _written(folder: Path) -> dict[str, Any]:
    first, second, last = split(pages(folder / "tables"))
    return {
        "first_pages": first,
        "second_pages": second,
        "last_pages": last,
        "figures": figures(folder / "figures"),
    }


def _of_runs(runs: Sequence[Run]) -> dict[str, Any]:
    logs, shown_costs = decisions.log(runs), costs.breakdowns(runs)
    return {
        "runs": runs,
        "models": list(by_model(runs)),
        "policies": unique(run.policy for run in runs),
        "deciding": unique(log.run.policy for log in logs),
        "method": METHOD,
        "seeds": sorted({run.seed for run in runs}),
        "decisions": logs,
        "opened": next((log.run for log in logs if log.run.policy == METHOD), None),
        "most_rows": decisions.rows_per_run(len(logs)),
        "timelines": timelines.timelines(runs),
        "most_stages": timelines.MOST_STAGES,
        "gbs_colors": timelines.legend(runs),
        "costs": shown_costs,
        "parts": costs.legend(shown_costs),
        "run_table": _run_table(runs),
    }


def _run_table(runs: Sequence[Run]) -> Table:
    rows = [{**r, "commit": str(r["commit"])[:12]} for r in table_provenance.records(runs)]
    head = tuple(column.replace("_", " ") for column in table_provenance.COLUMNS)
    cells = [["–" if value is None else str(value) for value in row.values()] for row in rows]
    return Table(head=head, rows=tuple(map(tuple, cells)))


def labels(runs: Sequence[Run]) -> list[str]:
    """Return the short labels of everything that the runs gave: whose seconds, whose losses."""
    words = [f"{kind} seconds" for kind in unique(str(run.clock["kind"]) for run in runs)]
    return [*words, "proxy models"] if proxy_sentences(runs) else words


@functools.cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("cona.report"),
        autoescape=True,  # a name of a policy or a model is text, never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["script"] = _asset("filter.js")
    environment.globals["script_hash"] = _hash(_asset("filter.js"))
    environment.globals["style"] = _asset("style.css")
    environment.filters["inline"] = inline
    environment.globals["long_cell"] = LONG_CELL
    return environment


def _asset(name: str) -> str:
    return (files("cona.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return what lets a browser run this script and no other: a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
