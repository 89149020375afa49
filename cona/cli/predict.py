"""`cona predict`: seconds, memory and breakdown for every row of a CSV."""

from __future__ import annotations

from pathlib import Path

import click

from cona import config
from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec


@click.command(short_help="Predict the iteration time of every row of a CSV.")
@click.argument("rows_csv", metavar="ROWS.csv", type=click.Path(path_type=Path))
@click.option("--preset", help="Cost model, e.g. calculon or improved; default: the best there is.")
@click.option("--cluster", "cluster_name", help="Whose links, and what no column says.")
@click.option("--calibration", "calibration_file", help="Constants: a GPU type or a YAML file.")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path))
def predict(
    rows_csv: Path,
    preset: str | None,
    cluster_name: str | None,
    calibration_file: str | None,
    out: Path,
) -> None:
    """Add predictions to ROWS.csv: a row for each of its rows, in its order.

    The columns may be those of vTrain, of published results or of Calculon; GPU type and node size
    are taken from them where they are there. Times are not used. Infeasible rows, and rows with a
    cell that cannot be read, say why; those that only lack memory keep their seconds.

    \b
    Examples:
      cona predict rows.csv --out predictions.csv
      cona predict rows.csv --preset calculon --cluster dgx-a100 --out predictions.csv
    """
    from cona.cost import time_models
    from cona.cost.constants import load
    from cona.cost.row_predictions import predict_rows
    from cona.cost.rows import normalise, read_csv
    from cona.planning import DEFAULT_PRESET

    preset = preset or DEFAULT_PRESET
    if preset not in time_models():
        raise ConfigError(f"unknown preset '{preset}': {nearest(preset, time_models())}")
    cluster = config.load(ClusterSpec, cluster_name) if cluster_name else None
    calibration = load(calibration_file) if calibration_file else None
    if out.resolve() == rows_csv.resolve():
        raise ConfigError(f"--out {out}: it is ROWS.csv itself; name another file")
    raw = read_csv(rows_csv)
    rows = normalise(raw, where=str(rows_csv), cluster=cluster, is_lenient=True)
    predictions = predict_rows(rows, preset, cluster, calibration)
    taken = [name for name in predictions.columns if name in raw.columns]
    try:
        raw.drop(columns=taken).join(predictions).to_csv(out, index=False)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
    num_feasible = int(predictions["feasible"].sum())
    click.echo(f"{out}: {len(raw)} rows by {preset}, {num_feasible} of them feasible")
