"""Every fault that the tests play, and what must hold: the left side of docs/faults.md.

A test names its fault by the marker `fault`; `fault_table` collects the markers.
"""

from __future__ import annotations

_SAME = "the same command ends it with the same bytes"
_SENTENCE = "one sentence says where, what is missing and what to do; status 1"

FAULTS = {
    "SIGKILL of a run": f"{_SAME}; what is recorded is not trained again",
    "SIGKILL of a rank": "the run ends at once, in one sentence; the same command continues from "
    "the last checkpoint, to the same losses",
    "SIGKILL of torchrun": "its ranks save a checkpoint and end",
    "SIGKILL of snakemake": "what it started is found again and never started twice; "
    "a second call ends the work",
    "SIGKILL of slurmd": "the job goes on, its node finds it again; the same bytes, no second job",
    "SIGKILL in the middle of a write": f"no half file is taken for a whole one; {_SAME}",
    "SIGTERM": "the state is saved, status 143; nothing is repeated",
    "scancel": "as SIGTERM; a new job continues",
    "preemption": "the job saves, is requeued under its number and continues",
    "time limit": "the job saves before it, requeues itself and continues",
    "disk full": f"{_SENTENCE}; the last state stands, and with space {_SAME}",
    "read-only folder": f"{_SENTENCE}; writable again, {_SAME}",
    "disk that fails": f"{_SENTENCE}; mended, {_SAME}",
    "slow file system": "nothing but the time changes",
    "damaged snapshot": "it is passed over: an earlier one and the recorded iterations take its "
    "place, and the bytes are the same",
    "damaged checkpoint": "no damaged file is loaded, on any rank; the checkpoint before it takes "
    "its place",
    "damaged cache": "one sentence names the folder; no half entry is used",
    "torn line": f"the part of a line is cut off; {_SAME}",
    "lines that never reached the disk": "they are made again, the same",
    "half-written result": "the run counts as not finished, and is finished",
    "damaged result": "its checksum tells: the terminal says so, and the run is repeated to the "
    "same bytes",
    "stale lock": "an owner that is gone is succeeded at once; one that is there never is",
    "suspended process": "it stops when it finds that another one has taken over",
    "MLflow down": "no run notices; the import says so in one sentence, and a later one completes "
    "it without doubles",
    "random faults one after the other": "no lost evaluation, no sample twice, the same results: "
    "`make soak`",
}
"""By the name that a marker gives: what must hold."""
