"""The improved model as a whole: batches, broken rules, and the contract of a time model."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from cost_cases import BERT, GPT, LLAMA, PAPER, ladder_strategies, strategy
from hypothesis import given
from hypothesis import strategies as st
from improved_cases import CALIBRATION, NODES, plan, row, rows, seen

from cona.cost import predictions, time_model
from cona.cost.improved import Improved
from cona.cost.inputs import Inputs, inputs
from cona.cost.predictions import RULES, predict, reason
from cona.errors import ConfigError
from cona.specs import LadderSpec
from cona.strategy import StrategySpace


def stacked(parts: list[Inputs]) -> Inputs:
    names = [f.name for f in fields(Inputs)]
    return Inputs(**{n: np.concatenate([getattr(x, n) for x in parts]) for n in names})


@given(st.lists(rows(), min_size=1, max_size=5), st.integers(1, 4))
def test_a_batch_is_its_rows_whatever_the_chunks(parts: list[Inputs], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictions, "CHUNK_ROWS", chunk)
        found = seen(stacked(parts))
    alone = [seen(x) for x in parts]
    assert found.time_s.tolist() == [a.time_s[0] for a in alone]
    assert found.memory_bytes.tolist() == [a.memory_bytes[0] for a in alone]
    assert found.rule.tolist() == [a.rule[0] for a in alone]
    for name, part in found.parts.items():
        assert part.tolist() == [a.parts[name][0] for a in alone]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 3, "num_heads": 16}, "num_heads 16 is not divisible by tp 3"),
        ({"tp": 4, "num_kv_heads": 2}, "num_kv_heads 2 is not divisible by tp 4"),
        ({"tp": 4, "hidden": 2050}, "hidden_size 2050 is not divisible by tp 4"),
        ({"tp": 4, "ffn": 5461}, "ffn_size 5461 is not divisible by tp 4"),
        ({"pp": 5}, "num_layers 24 is not divisible by pp*virtual_stages = 5*1"),
        ({"pp": 4, "virtual_stages": 4}, "num_layers 24 is not divisible by pp*virtual_stages"),
        ({"dp": 3, "gbs": 8}, "gbs 8 is not divisible by dp*mbs = 3*1"),
        ({"cp": 4, "seq": 1028}, "seq_length 1028 is not divisible by 2*context_parallel = 2*4"),
        ({"virtual_stages": 2}, "virtual_stages 2 needs a pipeline; pp is 1"),
        ({"virtual_stages": 2, "pp": 4, "gbs": 6}, "interleaving needs gbs/(dp*mbs) = 6/(1*1)"),
        ({"dp": 1024, "gbs": 1024}, "= 1024*1*1*1 exceeds the 512 GPUs"),
        ({"mbs": 64, "gbs": 64}, "GB of memory and a GPU has 80 GB"),
    ],
)
def test_every_broken_rule_is_named(changes: dict[str, float], words: str) -> None:
    x = row(plan(1, 1, 1, 1, 8), **changes)
    found = seen(x)
    assert not found.feasible[0]
    text = reason(x, found, 0)
    assert text is not None
    assert words in text


def test_every_rule_is_tested_and_memory_is_last() -> None:
    assert len(RULES) == 1 + 11  # the cases above; divisibility of layers appears twice
    assert "memory" in RULES[-1]


def test_a_feasible_row_has_no_reason() -> None:
    x = row(plan(8, 1, 1, 1, 1))
    found = seen(x)
    assert found.feasible[0]
    assert reason(x, found, 0) is None


def test_context_parallelism_of_one_does_not_ask_for_an_even_sequence() -> None:
    assert seen(row(plan(1, 1, 1, 1, 1), seq=1023)).feasible[0]


@pytest.mark.parametrize("model", [GPT, BERT, LLAMA])
@pytest.mark.parametrize("num_gpus", [8, 64])
def test_the_strategy_space_breaks_no_rule_but_memory(model, num_gpus: int) -> None:
    space = StrategySpace(model=model, num_gpus=num_gpus, ladder=LadderSpec())
    found = predict(inputs(model, NODES, space.at(256)), CALIBRATION)
    assert found.rule.size > 10
    assert set(found.rule.tolist()) <= {0, len(RULES) - 1}


def test_columns_of_one_entry_hold_for_every_row() -> None:
    many = inputs(GPT, NODES, ladder_strategies(GPT))
    assert len(many.hidden) == 1
    expanded = {f.name: getattr(many, f.name) * np.ones(many.num_rows) for f in fields(many)}
    short, long = predict(many, CALIBRATION), predict(Inputs(**expanded), CALIBRATION)
    assert np.array_equal(short.time_s, long.time_s)
    assert np.array_equal(short.memory_bytes, long.memory_bytes)


# --- the contract of a time model -----------------------------------------------------------------


def test_it_is_a_time_model_by_name() -> None:
    prices = time_model("improved", GPT, PAPER)
    one = strategy(2, 1, 2, 4, 32)
    assert prices.name == "improved"
    assert prices.origin(one) == "model"
    assert prices.why_not(one) is None
    assert sum(prices.breakdown(one).values()) == pytest.approx(prices.time_s(one), rel=1e-12)


def test_tensor_parallelism_over_both_nodes_is_allowed_and_dear() -> None:
    prices = Improved(GPT, PAPER, calibration=CALIBRATION)
    across, inside = strategy(1, 4, 1, 8, 32), strategy(2, 2, 1, 8, 32)
    assert prices.time_s(across) > 1.5 * prices.time_s(inside)


def test_infeasible_strategies_raise_with_their_reason() -> None:
    prices = Improved(GPT, PAPER, calibration=CALIBRATION)
    wide = strategy(8, 1, 1, 1, 8)
    assert prices.why_not(wide) == (
        "dp*tp*pp*context_parallel = 8*1*1*1 exceeds the 4 GPUs of the cluster"
    )
    with pytest.raises(ConfigError, match="dp8-tp1-pp1-mbs1-gbs8 is infeasible: .* 4 GPUs"):
        prices.times_s([strategy(4, 1, 1, 1, 8), wide])


def test_many_times_are_the_same_as_one_by_one() -> None:
    found = [s for s in ladder_strategies(GPT) if s.mbs <= 8]
    prices = Improved(GPT, PAPER, calibration=CALIBRATION)
    alone = [Improved(GPT, PAPER, calibration=CALIBRATION).time_s(s) for s in found]
    assert prices.times_s(found).tolist() == alone
    assert prices.times_s([]).shape == (0,)


def test_memory_breakdown_is_that_of_the_strategy() -> None:
    prices, one = Improved(GPT, PAPER, calibration=CALIBRATION), strategy(4, 1, 1, 1, 8)
    parts = prices.memory_breakdown(one)
    assert sum(parts.values()) == pytest.approx(prices.memory_bytes(one), rel=1e-12)
    assert parts["logits"] == 1024 * 51200 * 10


def test_techniques_change_the_price() -> None:
    prices = Improved(GPT, NODES, calibration=CALIBRATION)
    again = plan(8, 1, 1, 8, 1, recompute="full")
    without = plan(8, 1, 1, 8, 1)
    assert prices.time_s(again) > prices.time_s(without)
    assert prices.memory_bytes(again) < prices.memory_bytes(without)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="no calibration for GPU 'a100-80h'.*a100-80g"):
        Improved(GPT, PAPER.model_copy(update={"gpu": "a100-80h"}))


def test_the_package_reaches_no_slow_import() -> None:
    """`cona plan` answers within a second: neither scipy nor pandas is imported for T."""
    import subprocess
    import sys

    code = (
        "import sys, cona.cost.predictions, cona.cost.constants, cona.cost.inputs;"
        "print([m for m in ('scipy', 'pandas', 'torch') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_stack_profiles_order_by_their_launches() -> None:
    times = [
        float(seen(row(plan(1, 1, 1, 1, 1), profile=p)).time_s[0])
        for p in ("tuned", "megatron-deepspeed", "debug")
    ]
    assert times == sorted(times)
    assert times[0] < times[1] < times[2]


def test_replace_keeps_rows_apart() -> None:
    x = inputs(GPT, NODES, [plan(1, 1, 1, 1, 1), plan(8, 1, 1, 1, 1)])
    assert x.num_rows == 2
    assert x.rows(1, 2).dp.tolist() == [8]
    assert replace(x, tp=np.array([1.0])).num_rows == 2
