"""Prepare each model's data, then train every policy on it."""


rule data:
    output:
        touch(f"{PIPELINE.folder}/{{model}}/.data-{PIPELINE.corpus_key}"),
    log:
        f"{PIPELINE.logs}/data-{{model}}.log",
    priority: 20  # before any training, so that the longest trainings start first
    conda:
        "../envs/cona.yaml"
    params:
        options=PIPELINE.data_options,
    message:
        "data for {wildcards.model}"
    shell:
        "cona data --model {wildcards.model} {params.options} > {log} 2>&1"


# One rule per group of policies that share a process; model and seed are wildcards. A group's
# finished runs survive when it runs again (update), and `cona run` skips them. What a killed
# Snakemake has left running is waited for (--wait), then skipped or continued.
for group in PIPELINE.groups:

    rule:
        name:
            f"train_{group.name}"
        input:
            ancient(rules.data.output),
        output:
            update(expand(RESULT, policy=group.policies, allow_missing=True)),
        log:
            f"{PIPELINE.logs}/train-{{model}}-{group.name}-seed{{seed}}.log",
        priority: group.priority
        conda:
            "../envs/cona.yaml"
        threads: 1
        resources:
            **PIPELINE.resources(f"train_{group.name}"),
        params:
            policies=group.options,
            options=PIPELINE.run_options,
            fingerprint=lambda wildcards: PIPELINE.fingerprint(wildcards.model),
        message:
            f"{{wildcards.model}} seed {{wildcards.seed}}: {group.title}"
        shell:
            LAUNCHER
            + "cona run --model {wildcards.model} --seed {wildcards.seed} {params.policies}"
            " {params.options} --wait 2>> {log} | tee -ai {log}"
