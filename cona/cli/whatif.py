"""`cona whatif`: would chaining pay on another cluster, by recorded runs?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cona import config
from cona.cli import names
from cona.cli.options import json_option, parse_change
from cona.cli.replay import recorded_tier
from cona.cli.terminal import say, steps
from cona.errors import ConfigError, RunError
from cona.specs import ClusterSpec, TierSpec

if TYPE_CHECKING:
    from cona.analysis.load import Run
    from cona.replay.whatif import Recorded, Size

SIZES = "8..4096"


@click.command(short_help="Would chaining pay on another cluster?")
@click.option("--runs", required=True, type=Path, help="A run, or a folder with finished runs.")
@click.option(
    "--cluster",
    required=True,
    shell_complete=names.clusters,
    help="Cluster like dgx-h100, or a YAML file of one.",
)
@click.option("--gpus", help=f"N or FROM..TO, doubling; default: {SIZES}, or NAME@N's own size.")
@click.option(
    "--policy",
    default="cona",
    show_default=True,
    shell_complete=names.policies,
    help="Policy that would chain.",
)
@click.option(
    "--recorded",
    default="cona",
    show_default=True,
    shell_complete=names.policies,
    help="Policy whose recorded noise is replayed.",
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Replace a setting of the tier."
)
@json_option
def whatif(
    runs: Path,
    cluster: str,
    gpus: str | None,
    policy: str,
    recorded: str,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replay the noise of recorded RUNS on CLUSTER at many sizes; nothing is trained.

    For every number of GPUs: the chain that a policy would take, the best fixed strategy in
    hindsight, and the recorded batch sizes re-timed, all to the progress of the recorded run. A
    proxy is priced as its full-size model. All seconds are modelled.

    With --json: policy, clock, and models with their sizes, seeds and chains.

    \b
    Examples:
      cona whatif --runs results/quick --cluster dgx-h100
      cona whatif --runs results/proxy --cluster dgx-a100 --gpus 8..512 --json
      cona whatif --runs results/quick/gpt3-1.3b-proxy/cona/seed0 --cluster dgx-h100@512
    """
    from cona.cli import whatif_text

    known = recorded_runs(runs, recorded, changes)
    places = clusters(cluster, gpus)
    found = {model: _sizes(of_model, places, policy) for model, of_model in known.items()}
    if as_json:
        click.echo(whatif_text.as_json(found, known, policy))
    else:
        say(whatif_text.as_text(found, known, policy))


def clusters(name: str, gpus: str | None) -> list[ClusterSpec]:
    """Return the sizes of a cluster that were asked for, doubling.

    Args:
        name: a cluster's name or YAML file.
        gpus: ``N`` or ``FROM..TO``; None: 8 to 4,096 of a plain name, else its own size.

    Raises:
        ConfigError: no such cluster, another form, or a size is no whole number of nodes.
    """
    from cona.replay.whatif import sized

    base = config.load(ClusterSpec, name)
    if gpus is None and ("@" in name or name.endswith((".yaml", ".yml"))):
        return [base]
    match = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", SIZES if gpus is None else gpus)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise ConfigError(f"--gpus {gpus}: expected N or FROM..TO, e.g. {SIZES}")
    if gpus is None:  # a node that has more than eight
        low = max(low, base.gpus_per_node)
    sizes = [low * 2**i for i in range(high.bit_length()) if low * 2**i <= high]
    return [sized(base, size) for size in sizes]


def recorded_runs(
    folder: Path, policy: str, changes: Iterable[str] = ()
) -> dict[str, list[Recorded]]:
    """Return the recorded runs of a folder by model, ordered by seed.

    Args:
        folder: a run directory, or any folder above some.
        policy: whose runs are taken; a run directory is taken whatever its policy.
        changes: KEY=VALUE, settings of their tiers to replace.

    Raises:
        ConfigError: no such folder, two tiers hold runs of a model, or a change breaks a rule.
        RunError: there is no such run, or a file is damaged.
    """
    from cona.analysis.load import load_run
    from cona.replay.trace import read_recording
    from cona.replay.whatif import Recorded

    if not folder.is_dir():
        raise ConfigError(f"--runs {folder}: there is no such folder; e.g. --runs results/quick")
    values = dict(parse_change(change) for change in changes)
    is_one = (folder / "metrics.jsonl").is_file()
    paths = [folder] if is_one else [p.parent for p in folder.rglob("seed*/result.json")]
    loaded = [load_run(path) for path in sorted(paths)]
    chosen = loaded if is_one else [run for run in loaded if run.policy == policy]
    if not chosen:
        raise RunError(_none(folder, policy, loaded))
    _refuse_mixture(chosen)
    found: dict[str, list[Recorded]] = {}
    for run in sorted(chosen, key=lambda one: (one.model, one.seed)):
        tier = config.override(_tier(run), values, where="--set")
        recording = read_recording(run.path / "metrics.jsonl")
        one = Recorded(
            model=run.model, seed=run.seed, policy=run.policy, tier=tier, recording=recording
        )
        found.setdefault(run.model, []).append(one)
    return found


def _tier(run: Run) -> TierSpec:
    tier = recorded_tier(run.path)
    if tier is None:
        raise RunError(f"{run.path}: run.json is missing, which says what was run; run it again")
    return tier


def _none(folder: Path, policy: str, loaded: Sequence[Run]) -> str:
    from cona.analysis.load import run_command

    others = sorted({run.policy for run in loaded})
    if others:
        return f"{folder}: no finished run of '{policy}'; --recorded may be {', '.join(others)}"
    return f"{folder}: no finished run; start one with {run_command(folder, 'quick', policy)}"


def _refuse_mixture(runs: Sequence[Run]) -> None:
    first: dict[str, Path] = {}
    for run in runs:
        tier = run.path.parents[2]
        if first.setdefault(run.model, tier) != tier:
            raise ConfigError(
                f"{first[run.model]} and {tier} both hold runs of {run.model}; name one of them: "
                f"--runs {first[run.model]}"
            )


def _sizes(
    runs: Sequence[Recorded], places: Sequence[ClusterSpec], policy: str
) -> tuple[Size, ...]:
    from cona.replay.whatif import size_of

    return tuple(size_of(runs, place, policy) for place in steps(places, runs[0].model))
