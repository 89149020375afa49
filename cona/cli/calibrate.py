"""`cona calibrate`: constants of the cost model for one GPU type, from measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cona.cli.options import json_option
from cona.cli.terminal import say, say_json, working
from cona.errors import ConfigError

if TYPE_CHECKING:
    from cona.cost.constants import Calibration


@click.command(short_help="Fit the cost model to measured iteration times.")
@click.argument("data_csv", metavar="DATA.csv", nargs=-1, required=True, type=Path)
@click.option("--gpu", "gpu_name", required=True, help="GPU type of the rows, e.g. a100-80g.")
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="Parts that are left out in turn, to see how good the fit is.",
)
@click.option("--source", default="", help="Where the rows come from; default: the files' names.")
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file to write.",
)
@json_option
def calibrate(
    data_csv: tuple[Path, ...], gpu_name: str, folds: int, source: str, out: Path, as_json: bool
) -> None:
    """Fit the constants of a GPU type to the rows of DATA.csv and write them as YAML.

    Every DATA.csv is in one of the formats that `cona predict` reads. The errors that are printed,
    and kept in the file, are those of rows whose shape was left out of the fit.

    With --json: all keys of the YAML file (gpu, calibrated, source, date, fitted, constants,
    residuals), and out.

    \b
    Examples:
      cona calibrate measured.csv --gpu a100-80g --out my-a100.yaml
      cona predict rows.csv --calibration my-a100.yaml --out predictions.csv
    """
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: the suffix must be .yaml")
    from cona.cost.calibration import fit
    from cona.cost.gpu_names import gpu_key
    from cona.cost.rows import read_measured

    key = gpu_key(gpu_name)
    rows, answers = read_measured(data_csv)
    for path in answers:
        click.echo(f"{path}: skipped: a model's answers, not measured times", err=True)
    with working(f"fitting {len(rows)} rows"):
        calibration = fit(rows, key, num_folds=folds, source=source)
    calibration.save(out)
    if as_json:
        say_json(calibration.model_dump(mode="json") | {"out": str(out)})
    else:
        say(report(calibration))
        click.echo(out)


def report(calibration: Calibration) -> str:
    """Return the errors by group of rows, a line each: median and p90 on rows left out."""
    if not calibration.residuals:
        return "no errors on rows left out: all rows are of one shape, one tp and one mbs"
    width = max(len(residual.group) for residual in calibration.residuals)
    return "\n".join(
        f"{r.group:<{width}}  {r.num_rows:>4} rows  median {r.median:6.1%}  p90 {r.p90:6.1%}  "
        f"(in the fit {r.fit_median:.1%})"
        for r in calibration.residuals
    )
