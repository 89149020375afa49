"""`cona predict`: seconds, memory and breakdown for every row of a CSV."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cona import config
from cona.cli import names
from cona.cli.options import json_option
from cona.cli.terminal import say_json, working
from cona.errors import ConfigError, nearest
from cona.specs import ClusterSpec
from cona.storage import put


@click.command(short_help="Predict the iteration time of every row of a CSV.")
@click.argument("rows_csv", metavar="ROWS.csv", type=click.Path(path_type=Path))
@click.option(
    "--preset",
    shell_complete=names.presets,
    help="Cost model, e.g. calculon or improved; default: the best there is.",
)
@click.option(
    "--cluster",
    "cluster_name",
    shell_complete=names.clusters,
    help="Whose links, and what no column says.",
)
@click.option("--calibration", "calibration_file", help="Constants: a GPU type or a YAML file.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CSV file to write; default: stdout.",
)
@json_option
def predict(
    rows_csv: Path,
    preset: str | None,
    cluster_name: str | None,
    calibration_file: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Add predictions to ROWS.csv: a row for each of its rows, in its order.

    The columns may be those of vTrain, of published results or of Calculon; GPU type and node size
    are taken from them where they are there. Times are not used. Infeasible rows, and rows with a
    cell that cannot be read, say why; those that only lack memory keep their seconds.

    With --json: a list of the rows with their columns and predicted_s, predicted_memory_bytes,
    predicted_<part>_s, calibrated, feasible and reason; what is unknown is null.

    \b
    Examples:
      cona predict rows.csv
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
    if out and as_json:
        raise click.UsageError("--json and --out both take the answer: give one of them")
    if out and out.resolve() == rows_csv.resolve():
        raise ConfigError(f"--out {out}: it is ROWS.csv itself; name another file")
    raw = read_csv(rows_csv)
    rows = normalise(raw, where=str(rows_csv), cluster=cluster, is_lenient=True)
    with working(f"pricing {len(raw)} rows"):
        predictions = predict_rows(rows, preset, cluster, calibration)
    taken = [name for name in predictions.columns if name in raw.columns]
    answer = raw.drop(columns=taken).join(predictions)
    if as_json:
        say_json(json.loads(answer.to_json(orient="records", double_precision=15)))
    else:
        write(answer.to_csv(index=False), out)
    num_feasible = int(predictions["feasible"].sum())
    told = f"{out or rows_csv}: {len(raw)} rows by {preset}, {num_feasible} of them feasible"
    click.echo(told, err=out is None)


def write(text: str, out: Path | None) -> None:
    """Write text to a file, or to stdout; raises ConfigError: the file cannot be written."""
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        put(out, text.encode())
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
