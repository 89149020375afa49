"""Train, score and draw one tier: `snakemake --cores all --config tier=quick` (the default)."""

import shlex
import signal
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version, validate

from cona import jobs
from cona.errors import ConaError
from cona.pipeline import Pipeline, check_settings

min_version("9.20")
try:
    check_settings(config)
    validate(config, "workflow/schemas/config.schema.yaml")
    PIPELINE = Pipeline.of(config)
except ConaError as error:  # one sentence, without a traceback
    raise WorkflowError(str(error)) from None

RESULT = f"{PIPELINE.folder}/{{model}}/{{policy}}/seed{{seed}}/result.json"
RESULTS = PIPELINE.results_files

# Jobs find `cona` beside the interpreter that runs Snakemake, and compute on one thread.
PROGRAMS = shlex.quote(str(Path(sys.executable).parent))
shell.prefix(f'set -euo pipefail; export PATH={PROGRAMS}:"$PATH" OMP_NUM_THREADS=1; ')

# SLURM signals runs before their time limit: they save. Whatever stands around them must not end.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

# What stands before a training command; only ranks on several nodes need something.
SRUN_OPTIONS = PIPELINE.geometry.srun_options
LAUNCH = shlex.quote(f"{workflow.basedir}/slurm/launch")
LAUNCHER = f"{LAUNCH} {SRUN_OPTIONS} -- " if SRUN_OPTIONS else ""


wildcard_constraints:
    model="|".join(PIPELINE.tier.models),
    seed="[0-9]+",


localrules:
    all,
    track,


onstart:
    jobs.lead(log)


include: "workflow/rules/train.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        RESULTS,  # named here too: a deleted run comes back although the tables still stand
        rules.tables.output,
        rules.figures.output,
        rules.planners.output,
        rules.report.output,
        rules.track.output,
    message:
        f"all of {PIPELINE.folder} is there"
