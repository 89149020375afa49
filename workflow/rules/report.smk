"""Turn finished runs into tables, figures, a report and MLflow runs; report what planners pick."""

from cona.tracking import uri


rule tables:
    input:
        RESULTS,
    output:
        csv=f"{PIPELINE.folder}/tables/ttp.csv",
        markdown=f"{PIPELINE.folder}/tables/ttp.md",
        claims=f"{PIPELINE.folder}/tables/claims.md",
    log:
        f"{PIPELINE.logs}/tables.log",
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.report_options,
    message:
        "tables"
    shell:
        "cona tables {params.options} > {log} 2>&1"


rule figures:
    input:
        RESULTS,
    output:
        directory(f"{PIPELINE.folder}/figures"),
    log:
        f"{PIPELINE.logs}/figures.log",
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.report_options,
    message:
        "figures"
    shell:
        "cona figures {params.options} > {log} 2>&1"


# Needs no run: it waits for nothing, and repeats when a setting of the tier changes.
rule planners:
    output:
        csv=f"{PIPELINE.folder}/tables/planners.csv",
        markdown=f"{PIPELINE.folder}/tables/planners.md",
    log:
        f"{PIPELINE.logs}/planners.log",
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.report_options,
        fingerprint=[PIPELINE.fingerprint(model) for model in PIPELINE.tier.models],
    message:
        "what planners pick"
    shell:
        "cona planners {params.options} > {log} 2>&1"


# One HTML file of all that stands by then.
rule report:
    input:
        RESULTS,
        rules.tables.output,
        rules.figures.output,
        rules.planners.output,
    output:
        f"{PIPELINE.folder}/report.html",
    log:
        f"{PIPELINE.logs}/report.log",
    priority: 1  # starts before `track`, which may fail
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.report_options,
    message:
        "the report"
    shell:
        "cona report {params.options} > {log} 2>&1"


# Last, so that a store that does not work takes nothing with it: by then all else stands. It fails
# and is seen; the same command tries again. Without it: `snakemake --cores all tables figures`.
rule track:
    input:
        RESULTS,
        rules.tables.output,
        rules.figures.output,
        rules.planners.output,
    output:
        # The store is shared by all tiers: it is an output only while it is missing.
        update(uri.missing_database()),
        touch(f"{PIPELINE.folder}/.tracked"),
    log:
        f"{PIPELINE.logs}/track.log",
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.report_options,
        store=uri.key(),
    message:
        "MLflow"
    shell:
        "cona track {params.options} 2>&1 | tee {log}"
