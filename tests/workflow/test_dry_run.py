"""What each tier would run, and what a wrong setting says; nothing is trained."""

import re

import pytest
import yaml
from snakemake_runs import ROOT, Workflow, jobs

from cona import registry

TIERS = ROOT / "config" / "tiers"


def policies_of(tier: str) -> list[str]:
    policies = yaml.safe_load((TIERS / f"{tier}.yaml").read_text())["policies"]
    return [str(policy) for policy in policies]


@pytest.mark.parametrize(
    ("tier", "num_data", "training"),
    [
        ("smoke", 1, {"train_policies": 1}),
        ("quick", 3, {"train_greedy_oracle": 3, "train_policies": 3}),  # 3 models
        (
            "proxy",  # x 3 seeds, 5 for the headline, 1 for the costliest
            3,
            {
                "train_greedy_oracle": 9,
                "train_greedy_oracle_seeds_0": 3,
                "train_greedy_oracle_seeds_0_1_2_3_4": 15,
                "train_policies": 9,
                "train_policies_seeds_0_1_2_3_4": 15,
            },
        ),
        ("paper@tiny", 3, {"train_greedy_oracle": 3, "train_policies": 3}),
        # x every policy, each a job
        ("paper", 3, {f"train_{re.sub(r'[-=]', '_', p)}": 9 for p in policies_of("paper")}),
    ],
)
def test_a_dry_run_schedules_every_job(
    workflow: Workflow, tier: str, num_data: int, training: dict[str, int]
) -> None:
    name, _, scale = tier.partition("@")
    settings = {"tier": name} | ({"scale": scale} if scale else {})
    done = workflow("--dry-run", "--cores", "1", **settings)
    rest = {"tables": 1, "figures": 1, "planners": 1, "report": 1, "track": 1, "all": 1}
    num_jobs = num_data + sum(training.values()) + sum(rest.values())
    assert done.returncode == 0, done.stdout
    assert jobs(done.stdout) == {"data": num_data, **training, **rest, "total": num_jobs}


@pytest.mark.parametrize("tier", ["proxy", "paper"])
def test_verdicts_compare_every_policy(tier: str) -> None:
    listed = policies_of(tier)
    for name in registry.policies():
        assert any(p == name or p.startswith(f"{name}-") for p in listed), name
    assert len(set(listed)) == len(listed)


def test_quick_keeps_its_small_set() -> None:
    """The committed reference results are of these runs."""
    fixed = [f"fixed-best-gbs{gbs}" for gbs in (8, 16, 32, 64)]
    assert policies_of("quick") == ["greedy-oracle", "cona", "cona-paper", "rampup", *fixed]


def test_the_default_tier_is_quick(workflow: Workflow) -> None:
    done = workflow("--dry-run", "--cores", "1", results="results")
    assert jobs(done.stdout)["data"] == 3
    assert "train_greedy_oracle" in done.stdout


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tier": "quik"}, "unknown tier 'quik': did you mean 'quick'?"),
        ({"teir": "quick"}, "--config teir: unknown key: did you mean 'tier'?"),
        ({"tier": "paper", "scale": "tinny"}, "unknown scale 'tinny': did you mean 'tiny'?"),
        ({"tier": "paper", "scale": "broken.yaml"}, "unknown key 'ladder.gbs_mx': did you mean"),
        ({"data": "wikitext"}, "--config data=wikitext: valid: stdlib, wikitext-103, wik"),
        ({"results": ""}, "results"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    workflow: Workflow, settings: dict[str, str], sentence: str
) -> None:
    broken = {"name": "broken", "description": "", "settings": {"ladder": {"gbs_mx": 8}}}
    (workflow.folder / "broken.yaml").write_text(yaml.safe_dump(broken))
    failed = workflow("--dry-run", "--cores", "1", **settings)
    assert failed.returncode == 1
    assert sentence in failed.stdout
    assert "Traceback" not in failed.stdout
    assert "Job stats" not in failed.stdout


def test_a_tier_of_ones_own_is_a_file(workflow: Workflow) -> None:
    tier = yaml.safe_load((TIERS / "smoke.yaml").read_text())
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
