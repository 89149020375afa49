"""Turn finished runs into tables, figures and MLflow runs; report what planners pick."""


rule tables:
    input:
        RESULTS,
    output:
        csv=f"{PIPELINE.folder}/tables/ttp.csv",
        markdown=f"{PIPELINE.folder}/tables/ttp.md",
    log:
        f"{PIPELINE.logs}/tables.log",
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.report_options,
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
    shell:
        "cona planners {params.options} > {log} 2>&1"


rule track:
    input:
        RESULTS,
    output:
        # The store is shared by all tiers: it is an output only while it is missing.
        [] if Path("mlflow.db").exists() else update("mlflow.db"),
        touch(f"{PIPELINE.folder}/.tracked"),
    log:
        f"{PIPELINE.logs}/track.log",
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.report_options,
    shell:
        "cona track {params.options} > {log} 2>&1"
