"""Scales: what they replace in a tier, what they leave, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cona import config, registry
from cona.errors import ConfigError
from cona.pipeline import Pipeline
from cona.specs import ClusterSpec, ModelSpec, ScaleSpec, TierSpec

TIERS, SCALES = config.names(TierSpec), config.names(ScaleSpec)


def scale(**fields: object) -> ScaleSpec:
    content = {"name": "other", "description": "for tests", "settings": {}, **fields}
    return config.validate(ScaleSpec, content, where="other.yaml")


def tier(name: str = "smoke") -> TierSpec:
    return config.load(TierSpec, name)


@pytest.mark.parametrize("scale_name", SCALES)
@pytest.mark.parametrize("tier_name", TIERS)
def test_every_shipped_scale_fits_every_tier(tier_name: str, scale_name: str) -> None:
    found = tier(f"{tier_name}@{scale_name}")
    assert found.name == f"{tier_name}-{scale_name}"
    for model in found.models:
        config.load(ModelSpec, model)
    for policy in found.policies:
        registry.policy(policy)
    config.load(ClusterSpec, found.cluster)


def test_tiny_keeps_the_rules_and_has_one_policy_of_every_kind() -> None:
    paper, tiny = tier("paper"), tier("paper@tiny")
    assert tiny.clock == paper.clock
    assert tiny.clock.kind == "measured"
    kept = ("techniques", "belief", "gns")
    assert [getattr(tiny, key) for key in kept] == [getattr(paper, key) for key in kept]
    assert (paper.data.corpus, tiny.data.corpus) == ("wikitext-103", "stdlib")
    assert tiny.oracle.forks == paper.oracle.forks
    assert set(tiny.policies) <= {*paper.policies, "megatron-rules-gbs16"}
    kinds = {registry.policy(policy).kind for policy in tiny.policies}
    assert kinds == {"online", "ablation", "schedule", "offline", "bound"}
    assert {config.load(ModelSpec, m).family for m in tiny.models} == {"gpt", "bert", "llama"}
    assert not tiny.gives_verdicts


def test_full_size_models_can_run_on_the_modelled_clock() -> None:
    paper, modelled = tier("paper"), tier("paper@modelled")
    assert modelled.clock.kind == "modelled"
    assert modelled.models == paper.models
    assert modelled.gives_verdicts
    geometry = Pipeline(tier=modelled, spec="paper@modelled", results="results").geometry
    assert (geometry.num_nodes, geometry.ranks_per_node, geometry.gpus_per_node) == (1, 1, 1)


@given(st.sampled_from(TIERS))
def test_a_scale_without_settings_changes_nothing_but_the_name(name: str) -> None:
    before, after = tier(name), config.scaled(tier(name), scale())
    same = {"name": before.name, "description": before.description}
    same["gives_verdicts"] = before.gives_verdicts
    assert after.model_copy(update=same) == before
    assert after.name == f"{name}-other"


@given(iterations=st.integers(1, 10**6), gbs_max=st.sampled_from([8, 16, 32, 64]))
def test_settings_replace_single_keys(iterations: int, gbs_max: int) -> None:
    settings = {"budget": {"iterations": iterations}, "ladder": {"gbs_max": gbs_max}}
    before, after = tier(), config.scaled(tier(), scale(settings=settings))
    assert after.budget.iterations == iterations
    assert after.ladder == before.ladder.model_copy(update={"gbs_max": gbs_max})
    assert after.evaluation == before.evaluation


def test_a_verdict_takes_a_tier_and_a_scale_that_give_one() -> None:
    found = {
        (name, gives): config.scaled(tier(name), scale(gives_verdicts=gives)).gives_verdicts
        for name in ("proxy", "smoke")
        for gives in (True, False)
    }
    assert found == {
        ("proxy", True): True,
        ("proxy", False): False,
        ("smoke", True): False,
        ("smoke", False): False,
    }


def test_what_a_scale_cannot_run_is_left_out_with_its_seeds() -> None:
    left = scale(leave_out=["cona", "rampup"])
    before = config.override(tier("proxy"), {"seeds_of": {"cona": [0, 1], "merrill": [0]}})
    after = config.scaled(before, left)
    assert set(before.policies) - set(after.policies) == {"cona", "rampup"}
    assert after.seeds_of == {"merrill": (0,)}


def test_results_go_to_a_folder_of_their_own() -> None:
    built = Pipeline.of({"tier": "smoke", "scale": "tiny", "results": "results"})
    assert built.folder == "results/smoke-tiny"
    assert built.logs == "logs/smoke-tiny"
    assert built.run_options.startswith("--tier smoke@tiny ")
    other = Pipeline.of({"tier": "smoke@tiny", "results": "results"})
    assert other == built


def test_a_policy_that_brings_its_engine_needs_ranks(tmp_path: Path) -> None:
    settings = {"policies": ["cona-paper-engine=deepspeed"]}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "description": "", "settings": settings}))
    with pytest.raises(ConfigError, match="engine=deepspeed': the modelled clock has one engine"):
        Pipeline.of({"tier": "smoke", "scale": str(path), "results": "results"})


@pytest.mark.parametrize("scale_name", SCALES)
@pytest.mark.parametrize("tier_name", TIERS)
def test_every_shipped_scale_can_be_planned(tier_name: str, scale_name: str) -> None:
    built = Pipeline.of({"tier": tier_name, "scale": scale_name, "results": "results"})
    assert built.groups


def test_a_scale_of_ones_own_is_a_file_and_so_may_its_tier_be(tmp_path: Path) -> None:
    folder = tmp_path / "me@home"
    folder.mkdir()
    content = {"name": "mine", "description": "two", "settings": {"seeds": [0, 1]}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(content))
    mine = config.load(TierSpec, f"smoke@{folder}/mine.yaml")
    assert (mine.name, mine.seeds) == ("smoke-mine", (0, 1))
    own = folder / "own.yaml"
    own.write_text((config.config_root() / "tiers" / "smoke.yaml").read_text())
    assert config.load(TierSpec, str(own)) == tier()
    assert config.load(TierSpec, f"{own}@tiny") == tier("smoke@tiny")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"modles": ["x"]}, "unknown key 'modles': did you mean 'models'"),
        ({"ladder": {"gbs_mx": 8}}, "unknown key 'ladder.gbs_mx': did you mean 'gbs_max'"),
        ({"ladder": {"gbs_max": 48}}, "gbs_max 48 is not gbs_min 8 times a power of two"),
        ({"seeds": {"cona": 3}}, "seeds"),
        ({"policies": {"x": 1}}, "policies"),
        ({"name": {"first": "x"}}, "settings.name: a scale says so itself; move 'name' up"),
        ({"gives_verdicts": True}, "settings.gives_verdicts: a scale says so itself"),
    ],
    ids=str,
)
def test_a_scale_that_does_not_fit_is_one_sentence(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as failure:
        config.scaled(tier(), scale(settings=settings))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("paper@tinny", "unknown scale 'tinny': did you mean 'tiny'"),
        ("papr@tiny", "unknown tier 'papr': did you mean 'paper'"),
        ("paper@", "unknown scale ''"),
        ("./nowhere@home/x.yaml@tiny", "x.yaml: No such file"),
    ],
)
def test_an_unknown_name_offers_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tier(name)


def test_a_scale_has_no_other_keys() -> None:
    with pytest.raises(ConfigError, match="unknown key 'setings': did you mean 'settings'"):
        scale(setings={})
