"""Claims: the rule by hand, who is compared, and that README's table is current."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_runs import eval_line, strategy, write_run
from hypothesis import given
from hypothesis import strategies as st
from problems import tiny_tier

from cona import cli, config
from cona.analysis.claim_numbers import Measured
from cona.analysis.claim_specs import ClaimSpec, ClaimsSpec, LimitSpec, load_claims
from cona.analysis.claims import Finding, findings
from cona.analysis.load import load_runs
from cona.analysis.readme_claims import BEGIN, END, fragment, write_readme
from cona.analysis.table_claims import COLUMNS, command, write_claims
from cona.errors import ConfigError
from cona.pipeline import with_scale
from cona.specs import ScaleSpec, TierSpec

ROOT = Path(__file__).parents[3]
MODEL = "gpt3-1.3b-proxy"
SEEDS = (0, 1, 2)
POLICIES = ("greedy-oracle", "cona", "fixed-best-gbs8", "fixed-best-gbs16", "metis-gbs16")


def tier(**changes: Any) -> TierSpec:
    fields = {"name": "judged", "gives_verdicts": True, "models": (MODEL,), "seeds": SEEDS}
    return tiny_tier(**{"policies": POLICIES, **fields, **changes})


def write(
    results: Path,
    policy: str,
    seconds: float | None,
    *,
    seeds: tuple[int, ...] = SEEDS,
    changes: int = 0,
    spread: float = 0.001,
) -> None:
    """Write runs that fall from ppl 500 to 100 in some seconds (None: never below 490).

    A budget of 100 s; seeds differ by ``spread``; log perplexity is linear in time.
    """
    kind = {"cona": "online", "greedy-oracle": "bound"}.get(policy, "offline")
    for seed in seeds:
        end = 100.0 if seconds is None else seconds * (1 + spread * seed)
        lines = [eval_line(0, 0.0, 500.0), eval_line(128, end, 490.0 if seconds is None else 100.0)]
        if seconds is not None:
            lines.append(eval_line(256, 100.0, 100.0))
        lines[1:1] = [switch(i) for i in range(changes)]
        options = {"policy": policy, "kind": kind, "seed": seed, "time_budget_s": 100.0}
        write_run(results, lines, tier="judged", model=MODEL, **options)


def switch(index: int) -> dict[str, Any]:
    layout = "dp2-tp1-pp2" if index % 2 else "dp4-tp1-pp1"
    record = {"from": strategy(8 * 2**index), "to": strategy(16 * 2**index, layout)}
    at = {"iteration": 1, "samples": 8, "train_s": 1.0, "cost_s": {}}
    return {"kind": "switch", **at, **record}


def judged(results: Path, **changes: Any) -> dict[str, Finding]:
    asked = tier(**changes)
    return {f.claim.name: f for f in findings(asked, load_runs(results, "judged"))}


def write_all(results: Path, *, cona: float = 10.0, oracle: float = 8.0) -> None:
    """Write every policy; fixed strategies take 20 s and 40 s, the planner 90 s."""
    write(results, "greedy-oracle", oracle, changes=5)
    write(results, "cona", cona, changes=3)
    for policy, seconds in zip(POLICIES[2:], (20.0, 40.0, 90.0), strict=True):
        write(results, policy, seconds)


def test_everything_is_reproduced_where_everything_is_faster(tmp_path: Path) -> None:
    write_all(tmp_path, cona=8.0)
    found = judged(tmp_path)
    verdicts = {name: finding.verdict for name, finding in found.items()}
    assert verdicts == {
        **dict.fromkeys(("C1", "C2", "C3", "C4"), "reproduced"),
        **dict.fromkeys(("COPUS", "C2b"), "context"),
    }
    ours = found["C2"].measured
    # 20/8 over the fastest, 90/8 over the planner; equal spreads leave an interval of no width
    assert ours.ours == (
        "2.50× [2.50, 2.50] over fixed-best-gbs8 to 11.25× [11.25, 11.25] over metis-gbs16"
    )
    assert ours.brief == "2.50 to 11.25×"
    assert (ours.num_reached, ours.num_seeds, ours.num_pairs, ours.target) == (3, 3, 3, 100.0)
    assert ours.strict == pytest.approx(2.5)
    assert found["COPUS"].measured.ours == "2.50× [2.50, 2.50]"
    assert found["C2b"].measured.ours == "11.25× [11.25, 11.25]"  # of planners there is metis alone
    assert found["C4"].measured.ours == (
        "cona: 3, of gbs 3, of layout 1; greedy-oracle: 5, of gbs 5, of layout 2"
    )


@pytest.mark.parametrize(
    ("cona", "verdict"),
    [
        (14.2, "reproduced"),
        (14.4, "same direction"),
        (19.9, "same direction"),
        (20.1, "not reproduced"),
    ],
)
def test_the_slowest_comparison_decides_c2(tmp_path: Path, cona: float, verdict: str) -> None:
    write_all(tmp_path, cona=cona)  # 20/1.4 = 14.29
    assert judged(tmp_path)["C2"].verdict == verdict


def test_seeds_that_disagree_are_not_reproduced(tmp_path: Path) -> None:
    write_all(tmp_path)
    write(tmp_path, "cona", 10.0, spread=0.4)  # 10, 14 and 18 s: the interval is wide
    found = judged(tmp_path)["C2"]
    assert found.verdict == "same direction"
    assert found.measured.mild == pytest.approx(20 * 1.001 / 14, rel=1e-3)
    assert found.measured.strict is not None and found.measured.strict < 1.4


def test_an_unreached_rival_counts_with_its_bound_and_an_unreached_method_loses(
    tmp_path: Path,
) -> None:
    write_all(tmp_path)
    write(tmp_path, "metis-gbs16", None)
    found = judged(tmp_path)["C2"]
    assert found.measured.brief == "2.00 to ≥ 9.99×"  # budget/TTP, 100/10.01 s
    assert found.verdict == "reproduced"
    write(tmp_path, "cona", None, seeds=(1,))
    found = judged(tmp_path)["C2"]
    assert (found.verdict, found.measured.ours) == ("not reproduced", "not reached")
    assert (found.measured.num_reached, found.measured.num_seeds) == (2, 3)


def test_c1_is_over_the_best_known_and_not_reproduced_where_that_is_offline(tmp_path: Path) -> None:
    write_all(tmp_path, oracle=8.0)
    assert judged(tmp_path)["C1"].measured.brief == "2.50 to 11.25×"
    write(tmp_path, "greedy-oracle", 30.0)  # slower than the best fixed strategy
    found = judged(tmp_path)["C1"]
    assert (found.measured.brief, found.verdict) == ("1.00 to 4.50×", "not reproduced")


@pytest.mark.parametrize(
    ("early", "verdict"),
    [(102.5, "reproduced"), (110.0, "same direction"), (113.0, "not reproduced")],
)
def test_c3_needs_the_whole_curve_near_and_the_mean_gives_the_direction(
    tmp_path: Path, early: float, verdict: str
) -> None:
    # above the reference by early/100 - 1 at 20 s, falling to nothing at 60 s; the end is at 100 s:
    # the mean is about a quarter of the maximum
    write_all(tmp_path)
    for policy, ppl in (("cona", early), ("greedy-oracle", 100.0), ("fixed-best-gbs8", 120.0)):
        curve = [(0, 0.0, 500.0), (128, 20.0, ppl), (256, 60.0, 100.0), (384, 100.0, 100.0)]
        kind = {"cona": "online", "greedy-oracle": "bound"}.get(policy, "offline")
        for seed in SEEDS:
            options = {"policy": policy, "kind": kind, "seed": seed, "time_budget_s": 100.0}
            lines = [eval_line(*point) for point in curve]
            write_run(tmp_path, lines, tier="judged", model=MODEL, **options)
    for policy in ("fixed-best-gbs16", "metis-gbs16"):
        write(tmp_path, policy, None)
    found = judged(tmp_path)["C3"]
    assert found.measured.strict == pytest.approx(early / 100 - 1)
    assert found.verdict == verdict


def test_policies_are_paired_by_common_seeds(tmp_path: Path) -> None:
    write_all(tmp_path)
    write(tmp_path, "cona", 10.0, seeds=(3, 4))
    more = {"cona": (0, 1, 2, 3, 4)}
    found = judged(tmp_path, seeds_of=more)["C2"]
    assert (found.measured.num_seeds, found.verdict) == (3, "reproduced")  # no rival has 3 and 4
    few = judged(tmp_path, seeds_of={"metis-gbs16": (0, 1)})["C2"]
    assert few.why_not_tested == "n = 2 common seeds, fewer than 3"
    assert few.measured.brief == "2.00 to 9.00×"


def test_a_missing_run_and_a_small_tier_give_no_verdict(tmp_path: Path) -> None:
    write_all(tmp_path)
    found = judged(tmp_path, policies=(*POLICIES, "aceso-gbs16"))
    assert found["C2"].why_not_tested == "3 of 15 runs are not finished"
    assert (found["C2"].verdict, found["C3"].verdict) == ("not tested", "reproduced")
    assert found["C2"].measured.brief == "2.00 to 9.00×"  # shown all the same
    for finding in judged(tmp_path, gives_verdicts=False).values():
        assert finding.verdict in ("not tested", "context")
    (empty,) = {f.verdict for f in judged(tmp_path, models=("bert-large-proxy",)).values()} - {
        "context"
    }
    assert empty == "not tested"


def test_runs_that_the_tier_does_not_ask_for_do_not_count(tmp_path: Path) -> None:
    write_all(tmp_path)
    write(tmp_path, "amp-gbs8", 9.0)  # an offline method faster than cona
    assert judged(tmp_path)["C2"].verdict == "reproduced"
    assert judged(tmp_path, policies=(*POLICIES, "amp-gbs8"))["C2"].verdict == "not reproduced"


def test_equal_speed_ups_are_said_once(tmp_path: Path) -> None:
    write_all(tmp_path, cona=8.0)
    write(tmp_path, "amp-gbs8", 90.0)
    found = judged(tmp_path, policies=(*POLICIES, "amp-gbs8"))["C2b"]
    assert found.measured.ours == "11.25× [11.25, 11.25] over each of 2 policies"


def test_smoke_and_quick_never_judge_and_the_limits_are_the_papers() -> None:
    for name in ("smoke", "quick"):
        assert not config.load(TierSpec, name).gives_verdicts
    for name in load_claims().readme_tiers:
        assert config.load(TierSpec, name).gives_verdicts
    limits = {c.name: (str(c.reproduced), str(c.same_direction)) for c in load_claims().claims}
    assert limits == {
        "C1": ("at least 1.8", "more than 1"),
        "C2": ("at least 1.4", "more than 1"),
        "C3": ("at most 0.026", "at most 0.026"),
        "C4": ("at least 3", "at least 1"),
        "COPUS": ("None", "None"),
        "C2b": ("None", "None"),
    }


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_a_better_number_never_has_a_worse_verdict(strict: float, mild: float, more: float) -> None:
    claim = load_claims().claims[1]
    order = ["not reproduced", "same direction", "reproduced"]

    def verdict(*numbers: float) -> int:
        measured = Measured(ours="", strict=numbers[0], mild=numbers[1])
        found = Finding(claim=claim, model="m", measured=measured, runs=(), why_not_tested=None)
        return order.index(found.verdict)

    assert verdict(strict + more, mild + more) >= verdict(strict, mild)


@pytest.mark.parametrize("limit", [{}, {"at_least": 1, "at_most": 2}])
def test_a_limit_is_exactly_one(limit: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="one of at_least, more_than and at_most"):
        config.validate(LimitSpec, limit, where="claims.yaml")


def test_a_claim_has_both_limits_or_none() -> None:
    claim = {"name": "C9", "statement": "", "paper": "", "measure": "changes"}
    with pytest.raises(ConfigError, match="give both reproduced and same_direction, or neither"):
        config.validate(ClaimSpec, {**claim, "reproduced": {"at_least": 1}}, where="claims.yaml")
    with pytest.raises(ConfigError, match=r"unknown key 'claim'.*did you mean 'claims'"):
        config.validate(ClaimsSpec, {"readme_tiers": [], "claim": []}, where="claims.yaml")


# --- files ----------------------------------------------------------------------------------------


def test_the_table_names_command_clock_scale_rule_and_run_keys(tmp_path: Path) -> None:
    write_all(tmp_path)
    table, page = write_claims(tmp_path, tier())
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert [row["claim"] for row in rows] == ["C1", "C2", "C3", "C4", "C2b", "COPUS"]
    c2 = rows[1]
    assert (c2["verdict"], c2["priced_as"], c2["clock"]) == ("reproduced", "gpt3-1.3b", "modelled")
    assert len(c2["run_keys"].split()) == 12  # cona and three offline policies, three seeds
    text = page.read_text()
    for part in ("make reproduce TIER=judged", "modelled, as gpt3-1.3b on a100x4-2node", "3/3"):
        assert part in text
    assert c2["run_keys"].split()[0] in text
    assert "nan" not in text.lower()


@pytest.mark.parametrize("tier_name", config.names(TierSpec))
@pytest.mark.parametrize("scale", [None, *config.names(ScaleSpec)])
def test_the_command_finds_the_tier_again(tier_name: str, scale: str | None) -> None:
    asked = config.load(TierSpec, with_scale(tier_name, scale))
    made = command(asked)
    assert made == "make reproduce TIER=" + (f"{tier_name}@{scale}" if scale else tier_name)
    assert config.load(TierSpec, made.partition("=")[2]) == asked


def test_a_tier_of_its_own_is_not_taken_for_a_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(tier()) == "make reproduce TIER=judged"
    monkeypatch.setenv("CONA_CONFIG_DIR", str(tmp_path))
    for path in ("tiers/paper.yaml", "scales/tiny.yaml"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).touch()
    assert command(tier(name="paper-tiny")) == "make reproduce TIER=paper@tiny"
    (tmp_path / "tiers/paper-tiny.yaml").touch()
    assert command(tier(name="paper-tiny")) == "make reproduce TIER=paper-tiny"


def test_cona_claims_says_what_it_wrote(tmp_path: Path) -> None:
    write_run(tmp_path, [eval_line(0, 0.0, 500.0), eval_line(128, 16.0, 100.0)], tier="smoke")
    done = CliRunner().invoke(cli.main, ["claims", "--tier", "smoke", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "claims.md" in done.output
    text = (tmp_path / "smoke/tables/claims.md").read_text()
    assert "the tier smoke gives no verdicts" in text


# --- README ---------------------------------------------------------------------------------------


def test_readmes_table_is_current() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.partition(BEGIN)[2].partition(END)[0]
    assert table.strip() == fragment(ROOT / "results/reference").strip(), (
        "run: cona claims --readme README.md"
    )


def test_without_reference_results_readme_says_not_tested(tmp_path: Path) -> None:
    text = fragment(tmp_path)
    assert text.count("not tested yet") == 4
    assert "1.4–9.6×" in text and "`proxy` or `paper`" in text


def test_with_reference_results_readme_shows_the_verdicts(tmp_path: Path) -> None:
    write_all(tmp_path)
    table, _ = write_claims(tmp_path, tier())
    target = tmp_path / "reference/proxy/tables/claims.csv"
    target.parent.mkdir(parents=True)
    target.write_text(table.read_text())
    readme = tmp_path / "README.md"
    readme.write_text(f"# T\n\n{BEGIN}\nold\n{END}\n\nrest\n")
    assert write_readme(readme, tmp_path / "reference")
    assert not write_readme(readme, tmp_path / "reference")
    text = readme.read_text()
    assert text.startswith("# T\n") and text.endswith("\nrest\n") and "old" not in text
    assert "2.00 to 9.00×: **reproduced**" in text
    assert "(results/reference/proxy/README.md)" in text


def test_a_readme_without_markers_or_a_broken_table_is_one_sentence(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    done = CliRunner().invoke(cli.main, ["claims", "--readme", str(readme)])
    assert (done.exit_code, "no such file" in done.output) == (2, True)
    readme.write_text("# T\n")
    with pytest.raises(ConfigError, match="between which the table goes"):
        write_readme(readme, tmp_path)
    broken = tmp_path / "proxy/tables/claims.csv"
    broken.parent.mkdir(parents=True)
    broken.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="not a claims table"):
        fragment(tmp_path)
