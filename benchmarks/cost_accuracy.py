"""Errors of the cost models on measured iteration times whose shapes no fit has seen.

Per GPU type and group of rows: absolute relative error, rank correlation, and layout regret (T of
the model's pick over the best T, among rows that differ in layout only). A fold leaves out whole
shapes; of a sweep, cells (tp, mbs). Then the goals, the worst groups, fp8 apart, and what other
folds change. A model's answers (Calculon's format) are skipped. Run from the repository:
``python benchmarks/cost_accuracy.py DATA.csv ...``; a folder stands for its CSVs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import numpy as np
import pandas as pd
from cost_goals import MIN_ROWS, TOTALS, Floats, Mask, goals, spread, worst
from scipy.stats import spearmanr
from tabulate import tabulate

from cona.cost.calibration import held_out, predicted_s, usable
from cona.cost.constants import SAME_CHIP
from cona.cost.folds import folds
from cona.cost.row_inputs import row_inputs
from cona.cost.row_predictions import predict_rows
from cona.cost.rows import read_measured
from cona.cost.stages import Stages
from cona.errors import ConaError, ConfigError

SEEDS = (0, 1, 2, 3)
"""Of the folds; the tables are those of the first."""

JOB = ["group", "num_gpus", "hidden_size", "num_layers", "seq_length", "gbs"]
"""Rows that agree in these differ in layout, micro-batch and techniques."""


def calculon(rows: pd.DataFrame, num_folds: int) -> Floats:
    """Return Calculon's seconds; NaN where it rejects a row. It fits nothing."""
    return predict_rows(rows, "calculon")["predicted_s"].to_numpy(float)


def one_constant(rows: pd.DataFrame, num_folds: int) -> Floats:
    """Return FLOPs over peak, times one constant per data set, fitted on the other folds."""
    ideal_s, fold_of = _ideal_s(rows), folds(rows, num_folds)
    ratio, found = rows["iteration_s"] / ideal_s, np.zeros(len(rows))
    for fold in np.unique(fold_of):
        medians = ratio[fold_of != fold].groupby(rows["source_file"]).median()
        constants = rows["source_file"].map(medians).to_numpy(float) * ideal_s
        found[fold_of == fold] = constants[fold_of == fold]
    return found


def _ideal_s(rows: pd.DataFrame) -> Floats:
    """Seconds at the tensor cores' peak: matrices three times (four if recomputed), scores."""
    x = row_inputs(rows)
    passes, tokens = 3 + x.recompute_rest, x.gbs * x.seq
    params = x.tp * Stages.of(x).layer_params * x.num_layers
    scores = 2 * x.num_layers * x.seq * x.hidden
    flops = 2 * tokens * (passes * (params + scores) + 3 * x.vocab * x.hidden)
    return np.asarray(flops / (x.dp * x.tp * x.pp * x.cp * x.matrix_flop_per_s), float)


def improved(rows: pd.DataFrame, num_folds: int) -> Floats:
    """Return the improved model's seconds, each from a fit without the row's shape."""
    return rows["iteration_s"].to_numpy(float) * (1 + held_out(rows, num_folds))


MODELS: dict[str, Callable[[pd.DataFrame, int], Floats]] = {
    "calculon": calculon,
    "one constant": one_constant,
    "improved": improved,
}


def regrets(rows: pd.DataFrame, seconds: Floats) -> Floats:
    """Return T of the pick over the best T for each job with at least two predicted rows."""
    found = []
    table = rows.assign(predicted_s=seconds).dropna(subset=["predicted_s"])
    for _, job in table.groupby(JOB):
        if len(job) > 1:
            pick = job.loc[job["predicted_s"].idxmin(), "iteration_s"]
            found.append(float(pick) / float(job["iteration_s"].min()))
    return np.array(found)


def line(name: str, model: str, rows: pd.DataFrame, seconds: Floats) -> list[object]:
    """Return one line of the table: a model on some rows."""
    is_known = np.isfinite(seconds)
    times = rows["iteration_s"].to_numpy(float)[is_known]
    errors = np.abs(seconds[is_known] / times - 1)
    if not len(errors):
        return [name, model, f"0/{len(rows)}", *[""] * 6]
    quantiles = [f"{100 * q:.1f} %" for q in np.quantile(errors, (0.5, 0.9, 1))]
    varies = len(errors) > 2 and np.ptp(times) > 0 and np.ptp(seconds[is_known]) > 0
    rank = f"{spearmanr(times, seconds[is_known]).statistic:.3f}" if varies else ""
    regret = regrets(rows, seconds)
    mean, worst = (f"{regret.mean():.3f}", f"{regret.max():.2f}") if len(regret) else ("", "")
    return [name, model, f"{len(errors)}/{len(rows)}", *quantiles, rank, mean, worst]


def selections(rows: pd.DataFrame) -> Iterator[tuple[str, Mask]]:
    """Yield each group of at least MIN_ROWS rows, then the totals that have goals."""
    for group, size in rows["group"].value_counts(sort=False).items():
        if size >= MIN_ROWS:
            yield str(group), (rows["group"] == group).to_numpy()
    for name in list(TOTALS)[1:]:
        yield name, TOTALS[name](rows)


def leave_group_out(rows: pd.DataFrame) -> Iterator[list[object]]:
    """Yield the improved model's errors on each group, fitted on all other groups."""
    for group, size in rows["group"].value_counts(sort=False).items():
        is_out = (rows["group"] == group).to_numpy()
        if size >= MIN_ROWS and not is_out.all():
            out = rows[is_out]
            yield line(str(group), "improved", out, predicted_s(out, fitted_on=rows[~is_out]))


def csv_files(paths: tuple[Path, ...]) -> list[Path]:
    """Return the CSVs among paths, a folder's in order of name; raises ConfigError if none."""
    found = [f for p in paths for f in (sorted(p.glob("*.csv")) if p.is_dir() else [p])]
    if not found:
        raise ConfigError(f"{', '.join(map(str, paths))}: no CSV in it; name a file or its folder")
    return found


def show(title: str, table: list[list[object]], header: list[str]) -> None:
    """Print a table under its title."""
    print(f"\n{title}\n")
    print(tabulate(table, header, tablefmt="github"))


HEADER = ["rows", "model", "n", "median", "p90", "max", "rank", "regret", "worst"]


def show_gpu(gpu: str, frame: pd.DataFrame, num_folds: int) -> tuple[pd.DataFrame, Floats]:
    """Print the tables of one GPU type; return its rows and the errors of improved on them."""
    rows = usable(frame, gpu)
    seconds = {name: model(rows, num_folds) for name, model in MODELS.items()}
    table = [
        line(name, model, rows[mask], found[mask])
        for name, mask in selections(rows)
        if mask.any()
        for model, found in seconds.items()
    ]
    show(f"{gpu}, {num_folds} folds of whole shapes", table, HEADER)
    title = f"{gpu}, each group predicted from all others; what these do not determine (a\n"
    show(
        title + "stack's launches) stays where the fit starts", list(leave_group_out(rows)), HEADER
    )
    if len(fp8 := fp8_rows(frame, gpu)):
        found = predicted_s(fp8, fitted_on=rows)
        groups = [(group, fp8["group"] == group) for group in fp8["group"].unique()]
        table = [line(g, "improved", fp8[mask], found[mask]) for g, mask in groups]
        table.append(line("fp8, all", "improved", fp8, found))
        show(f"{gpu}, fp8, which no fit has seen, from all rows in 16 bits", table, HEADER)
    return rows, np.abs(seconds["improved"] / rows["iteration_s"].to_numpy(float) - 1)


def fp8_rows(frame: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """Return the rows in fp8 of a GPU type."""
    chips = frame["gpu"].map(lambda name: SAME_CHIP.get(name, name))
    return frame[(chips == gpu) & (frame["precision"] == "fp8")].reset_index(drop=True)


def report(frame: pd.DataFrame, num_folds: int) -> None:
    """Print every table of measured rows."""
    print(
        "The fit's start, START in cona/cost/calibration.py, was chosen with these rows in sight:"
    )
    print("what it says of constants that few rows determine is no prediction.")
    gpus = sorted({SAME_CHIP.get(name, name) for name in frame["gpu"]})
    found = [show_gpu(gpu, frame, num_folds) for gpu in gpus]
    rows = pd.concat([part for part, _ in found], ignore_index=True)
    errors = np.concatenate([part for _, part in found])
    goal_header = ["rows", "error", "n", "measured", "goal", "verdict"]
    show("Goals for improved, all GPU types", list(goals(rows, errors)), goal_header)
    show("Worst groups of improved", worst(rows, errors), ["group", "n", "median", "max"])
    by_seed = {SEEDS[0]: errors}
    for seed in SEEDS[1:]:
        parts = [np.abs(held_out(part, num_folds, seed)) for part, _ in found]
        by_seed[seed] = np.concatenate(parts)
    seed_header = ["median of", *(f"folds {seed}" for seed in SEEDS), "range"]
    show("Medians of improved under other folds", list(spread(rows, by_seed)), seed_header)


@click.command()
@click.argument("paths", metavar="DATA.csv|FOLDER...", nargs=-1, type=Path)
@click.option("--folds", "num_folds", default=5, show_default=True, help="Folds of whole shapes.")
def main(paths: tuple[Path, ...], num_folds: int) -> None:
    """Print the errors of Calculon, one constant per data set, and the improved model."""
    if not paths:
        raise click.UsageError("name the CSVs of measured iteration times, or their folder")
    try:
        frame, answers = read_measured(csv_files(paths))
        for path in answers:
            click.echo(f"{path}: skipped: a model's answers, not measured times", err=True)
        report(frame[frame["iteration_s"].notna()], num_folds)
    except ConaError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
