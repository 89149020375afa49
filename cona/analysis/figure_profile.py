"""Figure: performance profile of the policies over models and targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cona.analysis.groups import METHOD, unique
from cona.analysis.load import Run
from cona.analysis.panels import DRAWN, add_row_legend, families, plain_log_ticks
from cona.analysis.performance_profile import Profile, profiles
from cona.analysis.style import line_style

CAPTION = (
    "Share of problems (model, target, seed) on which a policy's TTP is at most tau times that of "
    "the fastest method; a target that was not reached is never within tau, so a line ends at the "
    "share that was. Left end: how often it is the fastest. Bounds are no methods and may be "
    "faster. TTP: interpolated between evaluations; targets: all rungs that take the fastest "
    "method at least 4 % of the budget. Every seed and target is a problem of its own, so there is "
    "no centre over seeds and no interval. Only seeds that most policies have, and policies that "
    f"have them. {DRAWN} Then each family has a panel and an axis of its own, with cona in all of "
    "them."
)
_WIDTH_IN, _ROW_IN, _LEGEND_LINE_IN = 8.5, 2.6, 0.21
MOST_TAU = 10.0
"""Right end of an axis at most."""


def draw(runs: Sequence[Run]) -> Figure | None:
    """Return the figure; None if no target was reached, or only one policy has run."""
    found = profiles(runs).profiles
    if len(found) < 2:
        return None
    rows = _rows(runs, found)
    most = max(map(len, rows.values()))
    height = max(_ROW_IN, _LEGEND_LINE_IN * most + 0.3) * len(rows) + 1.7
    figure = Figure(figsize=(_WIDTH_IN, height))
    panels = np.atleast_1d(figure.subplots(len(rows), 1))
    for panel, (title, row) in zip(panels, rows.items(), strict=True):
        end = min(max([r for profile in row for r in profile.ratios] + [1.1]) * 1.05, MOST_TAU)
        for profile in row:
            _line(panel, profile, end)
        _finish(panel, end)
        panel.set_ylabel(f"{title}\nshare of problems".strip())
        add_row_legend([panel])
    panels[-1].set_xlabel("tau, factor of the fastest TTP (log)")
    return figure


def _rows(runs: Sequence[Run], found: Sequence[Profile]) -> dict[str, list[Profile]]:
    """Return the drawn profiles of each panel, by the panel's title."""
    known = {profile.policy: profile for profile in found}
    return {
        title: [known[p] for p in unique(run.policy for run in row) if p in known]
        for title, row in families(runs).items()
    }


def _line(panel: Axes, profile: Profile, end: float) -> None:
    style = line_style(profile.policy)
    inside = [ratio for ratio in profile.ratios if 1.0 < ratio <= end]
    taus = [1.0, *inside, end]
    panel.plot(
        taus,
        [profile.share(tau) for tau in taus],
        color=style.color,
        linestyle=style.dash,
        linewidth=style.width,
        marker=style.marker,
        markevery=(0.02, 0.17),
        markersize=4.5,
        drawstyle="steps-post",
        zorder=2 if profile.policy == METHOD else 3,
        label=profile.policy,
    )


def _finish(panel: Axes, end: float) -> None:
    panel.set_xscale("log")
    panel.set_xlim(0.995, end)
    panel.set_ylim(0, 1.02)
    plain_log_ticks(panel.xaxis, 1.0, end)
