"""What each tier would run, and what a wrong setting says; nothing is trained."""

import pytest
import yaml
from snakemake_runs import ROOT, Workflow, jobs


@pytest.mark.parametrize(
    ("tier", "num_data", "training"),
    [
        ("smoke", 1, {"train_policies": 1}),
        ("quick", 3, {"train_greedy_oracle": 3, "train_policies": 3}),  # 3 models
        ("proxy", 3, {"train_greedy_oracle": 9, "train_policies": 9}),  # x 3 seeds
        (
            "paper",
            3,
            {  # 10 policies x 3 models x 3 seeds, each a job
                "train_greedy_oracle": 9,
                "train_cona": 9,
                "train_cona_paper": 9,
                "train_rampup": 9,
                **{f"train_fixed_best_gbs{gbs}": 9 for gbs in (8, 16, 32, 64, 128, 256)},
            },
        ),
    ],
)
def test_a_dry_run_schedules_every_job(
    workflow: Workflow, tier: str, num_data: int, training: dict[str, int]
) -> None:
    done = workflow("--dry-run", "--cores", "1", tier=tier)
    rest = {"tables": 1, "figures": 1, "planners": 1, "track": 1, "all": 1}
    num_jobs = num_data + sum(training.values()) + sum(rest.values())
    assert done.returncode == 0, done.stdout
    assert jobs(done.stdout) == {"data": num_data, **training, **rest, "total": num_jobs}


def test_the_default_tier_is_quick(workflow: Workflow) -> None:
    done = workflow("--dry-run", "--cores", "1", results="results")
    assert jobs(done.stdout)["data"] == 3
    assert "train_greedy_oracle" in done.stdout


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tier": "quik"}, "unknown tier 'quik': did you mean 'quick'?"),
        ({"teir": "quick"}, "--config teir: unknown key: did you mean 'tier'?"),
        ({"data": "wikitext"}, "--config data=wikitext: valid: stdlib, text:<path>"),
        ({"results": ""}, "results"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    workflow: Workflow, settings: dict[str, str], sentence: str
) -> None:
    failed = workflow("--dry-run", "--cores", "1", **settings)
    assert failed.returncode == 1
    assert sentence in failed.stdout
    assert "Traceback" not in failed.stdout
    assert "Job stats" not in failed.stdout


def test_a_tier_of_ones_own_is_a_file(workflow: Workflow) -> None:
    tier = yaml.safe_load((ROOT / "config" / "tiers" / "smoke.yaml").read_text())
    mine = {**tier, "name": "mine", "policies": ["rampup"], "cluster": "dgx-a100"}
    (workflow.folder / "mine.yaml").write_text(yaml.safe_dump(mine))
    done = workflow("--dry-run", "--cores", "1", tier="mine.yaml")
    assert done.returncode == 0, done.stdout
    assert jobs(done.stdout)["train_policies"] == 1


def test_profile_does_not_train_again_for_code_or_choose_an_executor() -> None:
    """The workflow profile overrides `--profile slurm`, so it must leave these to others."""
    profile = yaml.safe_load((ROOT / "profiles" / "default" / "config.yaml").read_text())
    assert sorted(profile["rerun-triggers"]) == ["input", "mtime", "params"]
    assert not {"executor", "cores", "jobs", "retries", "default-resources"} & set(profile)
