"""`make soak`, short: random faults over short runs, and nothing comes of them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import soak
from soak import Soak, Tally
from soak_runs import Measured, Modelled


@pytest.mark.slow
@pytest.mark.fault("random faults one after the other")
def test_a_short_soak_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SHARE_MEASURED", 0.5)
    tally = Soak(tmp_path, seed=1).play(6)
    assert tally.played.total() == 6
    assert tally.is_clean, tally.table()


def test_a_tally_that_is_not_clean_says_of_which_fault() -> None:
    tally = Tally(played=Counter(a=2, longer=1), lost=Counter(a=0))
    assert tally.is_clean
    tally.note("longer", ["metrics.jsonl"])
    tally.duplicated["a"] += 8
    assert not tally.is_clean
    assert tally.table().splitlines() == [
        "fault   played  lost evaluations  duplicated samples  differences",
        "a            2                 0                   8            0",
        "longer       1                 0                   0            1",
        "all          3                 0                   8            1",
        "longer: metrics.jsonl",
    ]


def write_log(run: Modelled | Measured, *lines: str) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / run.log).write_text("".join(f"{line}\n" for line in lines))


def test_a_soak_sees_samples_that_were_trained_twice(tmp_path: Path) -> None:
    run = Modelled(tmp_path / "run", "cona")
    steps = [f'{{"kind":"step","samples":{n},"gbs":8}}' for n in (8, 16, 24)]
    write_log(run, *steps)
    assert run.num_duplicated() == 0
    write_log(run, *steps, steps[1])
    assert run.num_duplicated() == 16
    write_log(run, *steps, '{"kind":"step","samples":28,"gbs":8}')
    assert run.num_duplicated() == 4


def test_a_soak_sees_another_loss_and_another_byte(tmp_path: Path) -> None:
    line = '{{"kind":"step","iteration":1,"samples":8,"strategy":"s","loss_nats":{}}}'
    for kind in (Modelled, Measured):
        whole, run = (kind(tmp_path / f"{kind.__name__}{i}", "cona") for i in range(2))
        write_log(whole, line.format(1.0))
        write_log(run, line.format(1.0))
        assert run.differences(whole) == []
        write_log(run, line.format(1.5))
        assert len(run.differences(whole)) == 1


def test_which_faults_are_drawn_depends_on_the_seed_alone(tmp_path: Path) -> None:
    def draws(seed: int) -> list[str]:
        played = Soak(tmp_path, seed)
        return [played._draw(random.Random(seed).choice((Modelled, Measured))) for _ in range(30)]

    assert draws(1) == draws(1) != draws(2)
