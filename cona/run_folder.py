"""Is a run directory finished, and by which configuration?"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from cona.errors import RunError
from cona.measured_record import NAME
from cona.result import HASH, RESULT_SCHEMA, is_intact
from cona.runlog import read_json, read_records, sha256
from cona.storage import writing


def finished(result_path: Path, run_key: str) -> bool:
    """Return whether a result of this very configuration exists that nothing has damaged."""
    if not result_path.exists() or damage(result_path):
        return False
    return read_json(result_path).get("run_key") == run_key


def damage(result_path: Path) -> str | None:
    """Return why a result that stands does not count, in words; None: it does, or there is none.

    Repeating the run writes it again.
    """
    metrics = result_path.with_name("metrics.jsonl")
    if not result_path.exists():
        return None
    try:
        result = read_json(result_path)
    except RunError:
        return "result.json is damaged: not JSON"
    if result.get("schema") != RESULT_SCHEMA or HASH not in result:
        return "result.json is of another version of cona"
    if not is_intact(result):
        return "result.json is damaged: it does not match its checksum"
    if not metrics.exists():
        return "metrics.jsonl is missing"
    if result.get("metrics_sha256") != sha256(metrics):
        return "metrics.jsonl is damaged: it does not match its checksum in result.json"
    return None


def set_aside_other_configuration(folder: Path, run_key: str) -> None:
    """Keep the files of a run that another configuration made under another name."""
    if not any((folder / name).exists() for name in ("metrics.jsonl", NAME)):
        return
    if (key := _run_key(folder)) == run_key:
        return
    target = _free(folder / "superseded" / key)
    # The last two: should this be cut short, they are what makes the next start come here again.
    names = ("result.json", "events.jsonl", "run.json", "checkpoints", NAME, "metrics.jsonl")
    with writing(target):
        target.mkdir(parents=True)
        for name in names:
            path = folder / name
            if path.exists():
                path.replace(target / name)


def _run_key(folder: Path) -> str:
    """Return the key of the run whose files stand in a run directory; `unknown` if none says it."""
    with suppress(RunError):
        return str(read_json(folder / "run.json").get("run_key"))
    with suppress(RunError, LookupError, TypeError):  # run.json is missing or damaged
        return str(read_records(folder / NAME)[0]["run_key"])
    return "unknown"


def _free(path: Path) -> Path:
    """Return the path, or with the first number behind it that is not taken."""
    names = (path.with_name(f"{path.name}-{i}") for i in count(2))
    return next(p for p in chain([path], names) if not p.exists())
