"""Traces: what a CSV and a recorded run show to a policy, and how a broken CSV is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.errors import ConfigError, RunError
from cona.gns import Z_90, GradientNoiseScale, GradientTerms
from cona.replay.trace import GnsTrace, RecordedStep, Recording, read_recording
from cona.replay.trace_csv import read_csv, read_trace, write_csv


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


# --- a CSV --------------------------------------------------------------------------------------


def test_a_csv_is_linear_between_rows_and_held_beyond_its_ends(tmp_path):
    trace = read_csv(csv_file(tmp_path, "samples,gns,gns_se\n100,10,1\n300,30,5\n"))
    player = trace.play(0.999)
    seen = [player.advance(samples).estimate for samples in (8, 100, 150, 300, 1000)]
    assert [e.gns for e in seen] == [10.0, 10.0, 15.0, 30.0, 30.0]
    assert [e.num_terms for e in seen] == [1, 2, 3, 4, 5]
    # SE of log GNS = gns_se / gns, by hand: 1/10 at the first row, 2/15 a quarter further
    assert seen[1].se_log == pytest.approx(0.1)
    assert seen[2].se_log == pytest.approx(2 / 15)
    assert trace.last_samples == 300.0


def test_without_an_error_the_noise_is_known_exactly(tmp_path):
    noise = read_csv(csv_file(tmp_path, "samples,gns\n0,12.5\n")).play(0.999).advance(8)
    assert noise.terms == GradientTerms(tr_sigma=12.5, mu_sq=1.0)
    assert (noise.estimate.gns, noise.estimate.var_xx, noise.estimate.var_yy) == (12.5, 0.0, 0.0)


def test_columns_may_be_in_any_order_and_blank_lines_end_a_file(tmp_path):
    trace = read_csv(csv_file(tmp_path, "gns, samples\n 5,0\n7, 1e3\n\n\n"))
    assert trace.samples.tolist() == [0.0, 1000.0]
    assert trace.gns.tolist() == [5.0, 7.0]


rising = st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True).map(sorted)


@given(rising, st.data())
def test_interpolated_noise_lies_between_its_neighbours(samples, data):
    sizes = st.lists(st.floats(0.1, 1e4), min_size=len(samples), max_size=len(samples))
    gns = np.array(data.draw(sizes))
    rows = np.array(samples, dtype=float)
    player = GnsTrace(samples=rows, gns=gns, gns_se=np.zeros(len(rows))).play(0.999)
    at = data.draw(st.integers(0, 2 * 10**6))
    after = int(np.searchsorted(rows, at))
    around = gns[max(after - 1, 0) : after + 1]
    found = player.advance(at).estimate.gns
    assert min(around) * (1 - 1e-9) <= found <= max(around) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("empty", "samples,gns")),
        ("samples,gns\n", ("no row",)),
        ("samples,loss\n1,2\n", ("unknown column 'loss'", "samples, gns, gns_se")),
        ("samples,gsn\n1,2\n", ("unknown column 'gsn'", "did you mean 'gns'?")),
        ("samples,gns,gns\n1,2,3\n", ("'gns' is there twice",)),
        ("samples,gns_se\n1,2\n", ("'gns' is missing",)),
        ("samples,gns\n0,1\n8,\n", ("row 2 (line 3)", "gns is empty", "gap")),
        ("samples,gns\n0,1\n8\n", ("row 2", "gns is empty")),
        ("samples,gns\n0,1\n\n8,2\n", ("row 2", "samples is empty")),
        ("samples,gns\n0,1\n8,2,3\n", ("row 2", "3 cells", "2 columns")),
        ("samples,gns\n0,NaN\n", ("row 1", "gns = NaN is not finite")),
        ("samples,gns\n0,inf\n", ("row 1", "gns = inf is not finite")),
        ("samples,gns\n0,-3\n", ("row 1", "gns = -3 must be greater than 0")),
        ("samples,gns\n0,0\n", ("row 1", "gns = 0 must be greater than 0")),
        ("samples,gns\n-8,3\n", ("row 1", "samples = -8 must be 0 or more")),
        ("samples,gns,gns_se\n0,3,-1\n", ("row 1", "gns_se = -1 must be 0 or more")),
        ("samples,gns\n0,many\n", ("row 1", "'many' is not a number")),
        ("samples,gns\n8,1\n8,2\n", ("row 2", "samples 8 is there twice")),
        ("samples,gns\n16,1\n8,2\n", ("row 2", "samples 8 comes after 16", "sort")),
        ('samples,gns\n0,"1\n', ("not CSV",)),
        ("samples,gns\n0,1\0\n", ("not CSV", "zero bytes")),
        ("samples,gns\n0,1e308\n", ("row 1", "gns = 1e308 must be at most 1e+15")),
        ("samples,gns\n0,1e-300\n", ("row 1", "gns = 1e-300 must be at least 1e-15")),
        ("samples,gns,gns_se\n0,3,1e300\n", ("row 1", "gns_se = 1e300 must be at most")),
    ],
)
def test_a_broken_csv_is_one_sentence_that_names_the_row(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        read_csv(csv_file(tmp_path, text))
    message = str(error.value)
    assert "trace.csv" in message and "\n" not in message
    for word in words:
        assert word in message


def test_a_missing_file_and_a_binary_one_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not CSV"):
        read_trace(tmp_path / "binary.csv")


# --- a recorded run -----------------------------------------------------------------------------


def step(samples: int, gbs: int, tr_sigma: float | None, mu_sq: float = 1.0) -> RecordedStep:
    terms = None if tr_sigma is None else GradientTerms(tr_sigma=tr_sigma, mu_sq=mu_sq)
    return RecordedStep(samples=samples, gbs=gbs, terms=terms, gns=None, gns_low=None)


RUN = Recording(steps=(step(8, 8, 4.0), step(16, 8, 8.0), step(32, 16, None), step(48, 16, 2.0)))


def test_the_batches_of_the_run_see_each_step_once():
    player = RUN.play(0.99)
    own = GradientNoiseScale(0.99)
    for recorded in RUN.steps:
        noise = player.advance(recorded.samples)
        own.update(recorded.terms, recorded.gbs)
        assert noise.terms == recorded.terms
        assert noise.estimate == own.estimate()


def test_larger_batches_see_the_mean_over_their_samples_and_smaller_ones_nothing_new():
    assert RUN.play(0.99).advance(16).terms == GradientTerms(tr_sigma=6.0, mu_sq=1.0)
    # 4 and 8 over 8 samples each, 2 over 16: (32 + 64 + 32) / 32, the unmeasured step left out
    assert RUN.play(0.99).advance(64).terms == GradientTerms(tr_sigma=4.0, mu_sq=1.0)
    player = RUN.play(0.99)
    assert player.advance(4).estimate.num_terms == 0
    player.advance(8)
    assert player.advance(12).terms is None


def test_beyond_its_end_the_last_estimate_is_held():
    player = RUN.play(0.99)
    last = player.advance(48).estimate
    noise = player.advance(64)
    assert noise.estimate == last
    assert noise.terms == GradientTerms(tr_sigma=last.tr_sigma, mu_sq=last.mu_sq)


@given(st.lists(st.integers(1, 60), max_size=8, unique=True).map(sorted))
def test_the_estimate_at_the_end_does_not_depend_on_the_batches(stops):
    player, at_once = RUN.play(0.999), RUN.play(0.999)
    for samples in stops:
        player.advance(samples)
    assert player.advance(64).estimate == at_once.advance(64).estimate


def line(samples: int, **changes: object) -> str:
    fields = {"samples": samples, "gbs": 8, "tr_sigma": 4.0, "mu_sq": 0.5, "skipped": False}
    fields |= {"iteration": samples // 8, "kind": "step", "gns": 8.0, "gns_low": 4.0}
    return json.dumps(fields | changes) + "\n"


def test_a_run_is_read_from_its_folder_or_its_metrics(tmp_path):
    text = line(8) + line(16, skipped=True) + line(24, mu_sq=None) + '{"kind":"eval"}\n'
    (tmp_path / "metrics.jsonl").write_text(text)
    for path in (tmp_path, tmp_path / "metrics.jsonl"):
        recording = read_trace(path)
        assert [s.samples for s in recording.steps] == [8, 16, 24]
        assert [s.terms is None for s in recording.steps] == [False, True, True]


def test_a_folder_without_iterations_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: no such file"):
        read_trace(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"kind":"eval"}\n')
    with pytest.raises(ConfigError, match="no iteration"):
        read_trace(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"kind":"step","iteration":3}\n')
    with pytest.raises(ConfigError, match="iteration 3: key 'tr_sigma' is missing"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": "many"}, "iteration 1: invalid literal"),
        ({"samples": None}, "iteration 1: int() argument"),
        ({"gns": "x"}, "iteration 1: could not convert"),
        ({"gbs": 0}, "gbs 0 and samples 16 cannot be"),
        ({"samples": 8, "gbs": 16}, "gbs 16 and samples 8 cannot be"),
    ],
)
def test_a_broken_iteration_is_one_sentence(tmp_path, changes, words):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(json.loads(line(16)) | {"iteration": 1} | changes) + "\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, iteration 1") as error:
        read_trace(tmp_path)
    assert words in str(error.value)


def test_iterations_out_of_order_and_records_that_are_none_are_refused(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(16) + line(8))
    with pytest.raises(ConfigError, match="samples 8 come after 16"):
        read_trace(tmp_path)
    metrics.write_text('{"kind": "eval"}\n')
    with pytest.raises(ConfigError, match="no iteration"):
        read_trace(tmp_path)
    metrics.write_text("[1]\n5\n")
    with pytest.raises(RunError, match="line 1: not a JSON object"):
        read_trace(tmp_path)


def test_an_interval_that_cannot_be_gives_no_standard_error():
    for gns, low in ((-1.0, 1.0), (1.0, -1.0), (1.0, 2.0), (math.inf, 1.0), (1.0, math.nan)):
        assert RecordedStep(samples=8, gbs=8, terms=None, gns=gns, gns_low=low).gns_se is None


def test_a_run_becomes_a_csv_with_the_standard_error_of_its_interval(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(8, gns_low=None) + line(16) + line(24, gns=10.0, gns_low=9.0))
    assert write_csv(read_recording(metrics), tmp_path / "out.csv") == 2
    trace = read_csv(tmp_path / "out.csv")
    assert trace.samples.tolist() == [16.0, 24.0]
    assert trace.gns.tolist() == [8.0, 10.0]
    # the lower end is gns * exp(-z * se_log)
    wanted = [8 * math.log(2) / Z_90, 10 * math.log(10 / 9) / Z_90]
    assert trace.gns_se.tolist() == pytest.approx(wanted)


def test_a_run_without_an_estimate_gives_no_csv(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(8, gns=None, gns_low=None))
    with pytest.raises(ConfigError, match="no trace to write"):
        write_csv(read_recording(metrics), tmp_path / "out.csv")
