"""The Snakefile's knowledge of a tier: who trains together, and what repeats a training."""

import shlex
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona import config
from cona.data.corpora import CORPORA
from cona.errors import ConfigError, DataError
from cona.pipeline import Pipeline, check_settings
from cona.specs import TierSpec

MODEL = "gpt3-1.3b-proxy"


def pipeline(**changes: object) -> Pipeline:
    tier = config.override(config.load(TierSpec, "quick"), changes)
    return Pipeline(tier=tier, spec="quick", results="results")


names = st.lists(
    st.sampled_from(["greedy-oracle", "greedy-oracle-decisions4", "cona", "cona-z1.0", "rampup"]),
    min_size=1,
    unique=True,
)


@given(policies=names, share_process=st.booleans())
def test_every_policy_trains_in_exactly_one_group(policies: list[str], share_process: bool) -> None:
    groups = pipeline(policies=policies, share_process=share_process).groups
    assert Counter(p for group in groups for p in group.policies) == Counter(policies)
    assert all(group.policies for group in groups)
    assert len({group.name for group in groups}) == len(groups)
    assert all(group.name.isidentifier() for group in groups)
    for group in groups:
        assert (group.priority > 0) == any(p.startswith("greedy-oracle") for p in group.policies)


def test_sharing_means_the_oracle_and_the_rest() -> None:
    groups = pipeline(policies=["cona", "greedy-oracle", "rampup"], share_process=True).groups
    assert [g.policies for g in groups] == [("greedy-oracle",), ("cona", "rampup")]
    assert groups[1].options == "--policy cona --policy rampup"
    assert [g.title for g in groups] == ["greedy-oracle", "2 policies"]


def test_without_an_oracle_there_is_one_shared_process() -> None:
    assert [g.name for g in pipeline(policies=["cona"], share_process=True).groups] == ["policies"]


def test_otherwise_every_policy_is_a_job() -> None:
    groups = pipeline(policies=["cona", "fixed-best-gbs8"], share_process=False).groups
    assert [g.name for g in groups] == ["cona", "fixed_best_gbs8"]


def test_policies_with_their_own_seeds_are_a_job_of_their_own() -> None:
    tier = pipeline(
        policies=["cona", "greedy-oracle", "rampup", "seesaw"],
        seeds=[0, 1],
        seeds_of={"cona": [0, 1, 2], "seesaw": [0, 1, 2], "greedy-oracle": [0]},
        share_process=True,
    )
    assert {g.name: g.policies for g in tier.groups} == {
        "greedy_oracle_seeds_0": ("greedy-oracle",),
        "policies_seeds_0_1_2": ("cona", "seesaw"),
        "policies": ("rampup",),
    }
    runs = Counter(Path(file).parts[3] for file in tier.results_files)
    each = {"cona": 3, "seesaw": 3, "greedy-oracle": 1, "rampup": 2}
    assert runs == {policy: 3 * count for policy, count in each.items()}  # of three models


@pytest.mark.parametrize(
    ("seeds_of", "message"),
    [
        ({"conna": [0]}, "seeds_of: 'conna' is not among the policies: .*cona"),
        ({"cona": [0, 0]}, "seeds_of: 'cona' lists a seed twice"),
        ({"cona": []}, "at least 1"),
    ],
    ids=str,
)
def test_seeds_of_is_checked(seeds_of: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pipeline(seeds_of=seeds_of)


@pytest.mark.parametrize(
    "changes",
    [
        {"description": "other"},
        {"seeds_of": {"cona": [0, 1, 2, 3, 4]}},
        {"models": [MODEL]},
        {"policies": ["rampup"]},
        {"seeds": [0, 1, 2]},
        {"share_process": False},
        {"gives_verdicts": True},
    ],
    ids=str,
)
def test_what_else_is_trained_does_not_repeat_a_training(changes: dict[str, object]) -> None:
    assert pipeline(**changes).fingerprint(MODEL) == pipeline().fingerprint(MODEL)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget.iterations": 301},
        {"data.corpus": "text:x"},
        {"belief": "other"},
        {"controller.z": 1.0},
        {"ladder.gbs_max": 32},
    ],
    ids=str,
)
def test_a_changed_setting_repeats_a_training(changes: dict[str, object]) -> None:
    assert pipeline(**changes).fingerprint(MODEL) != pipeline().fingerprint(MODEL)


def test_models_have_different_fingerprints() -> None:
    models = pipeline().tier.models
    assert len({pipeline().fingerprint(model) for model in models}) == len(models)


def test_options_survive_the_shell(tmp_path: Path) -> None:
    corpus = f"text:{tmp_path}/a b$c"
    Path(corpus.removeprefix("text:")).write_text("some words")
    built = Pipeline.of({"tier": "quick", "results": "my results/", "data": corpus})
    words = ["--tier", "quick", "--data", corpus, "--out", "my results"]
    assert shlex.split(built.run_options) == words
    assert shlex.split(built.data_options) == words[:4]
    assert shlex.split(built.report_options) == [*words[:2], *words[4:]]
    assert built.folder == "my results/quick"


def test_a_text_that_is_not_there_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    for corpus in (f"text:{tmp_path}/no.txt", f"wikitext:{tmp_path}/no"):
        with pytest.raises(DataError, match=f"^{corpus}: there is no such file or folder"):
            Pipeline.of({"tier": "smoke", "results": "results", "data": corpus})


def test_unknown_names_are_errors_before_anything_runs(tmp_path) -> None:
    with pytest.raises(ConfigError, match="unknown tier 'quik': did you mean 'quick'"):
        Pipeline.of({"tier": "quik", "results": "results"})
    text = (config.config_root() / "tiers" / "smoke.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(MODEL, "gpt3-1.3b-poxy"))
    with pytest.raises(ConfigError, match=f"did you mean '{MODEL}'"):
        Pipeline.of({"tier": str(path), "results": "results"})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tier": 5}, "--config tier=5: valid: paper, proxy, quick, smoke"),
        ({"tier": ["quik"]}, "--config tier=['quik']: did you mean 'quick'?"),
        ({"tier": None}, "--config tier=: valid: paper, proxy, quick, smoke"),
        ({"scale": 5}, "--config scale=5: valid: modelled, tiny"),
        ({"results": None}, "--config results=: a folder, e.g. ./results"),
        ({"results": ""}, "--config results=: a folder, e.g. ./results"),
        ({"results": 5}, "--config results=5: a folder, e.g. ./5"),
        ({"data": True}, f"--config data=True: valid: {CORPORA}"),
        ({"tire": 5}, "--config tire: unknown key: did you mean 'tier'?"),
    ],
    ids=str,
)
def test_a_setting_that_is_no_text_is_one_sentence(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_settings(settings)
    assert str(refused.value) == sentence


def test_a_changed_text_is_another_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words")
    before = pipeline(**{"data.corpus": f"text:{tmp_path}"})
    key, fingerprint = before.corpus_key, before.fingerprint(MODEL)
    assert pipeline(**{"data.corpus": f"text:{tmp_path}"}).corpus_key == key
    assert key != pipeline().corpus_key
    text.write_text("some other words")
    assert before.corpus_key != key
    assert before.fingerprint(MODEL) != fingerprint
