"""Configurations: what is shipped is valid; what is wrong gets one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cona import config
from cona.errors import ConfigError
from cona.registry import policy
from cona.specs import ClusterSpec, ModelSpec, TierSpec


@pytest.mark.parametrize("kind", [ModelSpec, ClusterSpec, TierSpec])
def test_everything_shipped_loads_and_is_named_after_its_file(kind: type) -> None:
    shipped = config.names(kind)
    assert shipped
    for name in shipped:
        assert config.load(kind, name).name == name


def test_every_reference_inside_a_tier_exists() -> None:
    for name in config.names(TierSpec):
        tier = config.load(TierSpec, name)
        for model in tier.models:
            spec = config.load(ModelSpec, model)
            if spec.priced_as:
                assert config.load(ModelSpec, spec.priced_as).priced_as is None
        config.load(ClusterSpec, tier.cluster)
        for text in tier.policies:
            policy(text)


def test_full_size_models_are_about_as_large_as_their_names() -> None:
    sizes = {"gpt3-1.3b": 1.3e9, "bert-large": 0.34e9, "llama-3.2-1b": 1.24e9}
    for name, expected in sizes.items():
        assert config.load(ModelSpec, name).num_params == pytest.approx(expected, rel=0.04)


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown model 'gpt3-1.3b-prox': did you mean 'gpt3"):
        config.load(ModelSpec, "gpt3-1.3b-prox")
    with pytest.raises(ConfigError, match="unknown tier 'quik': did you mean 'quick'"):
        config.load(TierSpec, "quik")


@pytest.mark.parametrize("name", ["figures", "tables", "Report", "report.html", "logs"])
def test_a_model_is_not_called_like_what_stands_beside_it(name: str) -> None:
    content = config.load(ModelSpec, "gpt3-1.3b").model_dump(mode="json")
    with pytest.raises(ConfigError, match=f"name '{name}' is taken: .*; nearest: '{name}-model'$"):
        config.validate(ModelSpec, {**content, "name": name}, where="mine.yaml")
    named = config.validate(ModelSpec, {**content, "name": f"{name}-model"}, where="mine.yaml")
    assert named.name == f"{name}-model"


def broken_tier(tmp_path: Path, **changes: object) -> str:
    content = config.load(TierSpec, "smoke").model_dump(mode="json")
    content.update(changes)
    path = tmp_path / "tier.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"modles": ["x"]}, "unknown key 'modles': did you mean 'models'"),
        ({"budget": {"iteration": 3}}, "unknown key 'budget.iteration': did you mean 'iterations'"),
        ({"budget": {"iterations": 0}}, "budget.iterations = 0: input should be greater than 0"),
        ({"models": []}, "models = .*at least 1"),
        ({"policies": ["cona", "cona"]}, "policies: 'cona' is listed twice"),
        ({"seeds": [-1]}, "seeds.0 = -1: input should be greater than or equal to 0"),
        ({"name": "../evil"}, "name = '../evil': string should match pattern"),
        ({"controller": {"z": float("inf")}}, "controller.z = inf: input should be a finite"),
        ({"ladder": {"gbs_min": 8, "gbs_max": 48}}, "gbs_max 48 .* nearest: 64"),
        (
            {"evaluation": {"interval_samples": 100, "num_samples": 8, "probe_samples": 8}},
            "interval_samples 100 is not a multiple of gbs_max .*; nearest: ",
        ),
        ({"techniques": {"zero_stge": 1}}, "key 'techniques.zero_stge': did you mean 'zero"),
        ({"ladder": {"gbs_max": 2**60}}, "gbs_max = 1152921504606846976: .* equal to 1048576"),
        ({"budget": {"iterations": 10**400}}, r"iterations = 1000+\.\.\.0+: .* 1099511627776"),
        ({"controller": {"z": 1e40}}, r"controller.z = 1e\+40: .* or equal to 1e\+30"),
        ({"name": "a\nb"}, r"name = 'a\\nb': string should match"),
        ({"gns": {"decay_per_sample": 1.5}}, "gns.decay_per_sample = 1.5: input should be less"),
    ],
)
def test_broken_rules(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config.load(TierSpec, broken_tier(tmp_path, **changes))


def test_missing_key_missing_file_and_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "tier.yaml"
    path.write_text("name: x\n")
    with pytest.raises(ConfigError, match="key 'description' is missing"):
        config.load(TierSpec, str(path))
    with pytest.raises(ConfigError, match="No such file"):
        config.load(TierSpec, str(tmp_path / "none.yaml"))
    path = tmp_path / "other.yaml"
    path.write_text("a: [1")
    with pytest.raises(ConfigError, match="not YAML"):
        config.load(TierSpec, str(path))
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected a mapping"):
        config.load(TierSpec, str(path))


def test_a_cluster_that_is_too_large_to_be_searched() -> None:
    with pytest.raises(ConfigError, match=r"12345678\*8 exceeds 131072 GPUs; nearest: "):
        config.load(ClusterSpec, "dgx-h100@12345678")
    with pytest.raises(ConfigError, match="unknown cluster 'a@@@@.*'"):
        config.load(ClusterSpec, f"a{'@' * 2000}")


def test_a_file_that_breaks_many_rules_names_a_few(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(yaml.safe_dump({f"key{i}": i for i in range(50)}))
    with pytest.raises(ConfigError, match=r"key 'name' is missing; .*; and \d+ more$") as caught:
        config.load(ModelSpec, str(path))
    assert len(str(caught.value)) < 2000


def test_heads_must_divide(tmp_path: Path) -> None:
    content = config.load(ModelSpec, "bert-large").model_dump(mode="json")
    content["num_heads"] = 7
    path = tmp_path / "model.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="hidden_size 1024 is not divisible by num_heads 7"):
        config.load(ModelSpec, str(path))


def test_override_is_validated() -> None:
    tier = config.load(TierSpec, "smoke")
    assert config.override(tier, {"budget.iterations": 7}).budget.iterations == 7
    with pytest.raises(ConfigError, match="unknown key 'budget.iters'"):
        config.override(tier, {"budget.iters": 7})


def test_hash_follows_content_not_order() -> None:
    assert config.content_hash({"a": 1, "b": 2}) == config.content_hash({"b": 2, "a": 1})
    assert config.content_hash({"a": 1}) != config.content_hash({"a": 2})
