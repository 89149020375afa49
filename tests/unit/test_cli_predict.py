"""`cona predict`: a prediction or a reason for every row."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from cona import cli, config
from cona.cost import row_specs, time_model
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Strategy

HEAD = ("--preset", "calculon+head")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


ROWS = (
    "gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iteration_ms,remark\n"
    "8,32,4,1024,16,24,1024,2,2,2,250,fine\n"
    "8,32,4,1024,16,24,1024,1,2,2,250,GPUs\n"
    "8,32,4,1024,16,23,1024,2,2,2,250,layers\n"
    "8,32,4,1000,16,24,1024,2,2,2,250,heads\n"
    "8,32,3,1024,16,24,1024,2,2,2,250,batch\n"
    "1,8,8,12288,96,96,2048,1,1,1,250,memory\n"
)


@pytest.fixture
def rows_csv(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(ROWS, encoding="utf-8")
    return path


def predicted(rows_csv: Path, *arguments: str) -> pd.DataFrame:
    out = rows_csv.with_name("out.csv")
    done = invoke("predict", str(rows_csv), "--out", str(out), *arguments)
    assert done.exit_code == 0, done.output
    return pd.read_csv(out)


@pytest.mark.parametrize("preset", ["calculon", "improved", None])
def test_every_row_has_a_prediction_or_a_reason(rows_csv: Path, preset: str | None) -> None:
    found = predicted(rows_csv, *(("--preset", preset) if preset else ()))
    raw = pd.read_csv(rows_csv)
    pd.testing.assert_frame_equal(found[list(raw.columns)], raw)
    rows = found.set_index("remark")
    assert list(rows["feasible"]) == [True, False, False, False, False, False]
    assert pd.isna(rows.loc["fine", "reason"])
    words = {
        "GPUs": "not the number of GPUs, 8",
        "layers": "num_layers 23 is not divisible by pp",
        "heads": "hidden_size 1000 is not divisible by num_heads 16",
        "batch": "gbs 32 is not divisible by dp*mbs",
        "memory": "GB",
    }
    for remark, sentence in words.items():
        assert sentence in rows.loc[remark, "reason"]
    assert rows["predicted_s"].notna().tolist() == [True, False, False, False, False, True]
    parts = rows.filter(regex=r"^predicted_(?!memory).+_s$").loc["fine"]
    assert parts.sum() == pytest.approx(rows.loc["fine", "predicted_s"], rel=1e-9)


def test_calculon_rows_get_calculons_time(rows_csv: Path) -> None:
    """Full recomputation and a sharded optimizer: the answer of the model that plans."""
    rows_csv.write_text(
        "layers,hidden,heads,ffn,seq,system,dp,tp,pp,mbs,gbs,seconds\n"
        "24,2048,16,8192,1024,a100_80g_2gpu_node,2,2,1,4,64,1\n"
        "24,2048,16,8192,1024,a100_80g_2gpu_node,2,1,1,4,64,1\n"
        "24,2048,16,8192,1024,a100_80g_2gpu_node,1,4,1,4,64,1\n",
        encoding="utf-8",
    )
    found = predicted(rows_csv, "--preset", "calculon")
    model, cluster = config.load(ModelSpec, "gpt3-1.3b"), config.load(ClusterSpec, "a100x4-2node")
    calculon = time_model("calculon", model, cluster)
    for row, layout in zip(found["predicted_s"], ("dp2-tp2", "dp2-tp1"), strict=False):
        expected = calculon.time_s(Strategy.parse(f"{layout}-pp1-mbs4-gbs64"))
        assert row == pytest.approx(expected, rel=1e-12)
    assert "tp 4 exceeds the 2 GPUs" in found["reason"].iloc[2]


def test_the_cluster_option_gives_links_and_gpu(rows_csv: Path) -> None:
    nvlink = predicted(rows_csv, *HEAD)["predicted_s"].iloc[0]
    named = predicted(rows_csv, *HEAD, "--cluster", "dgx-a100")["predicted_s"].iloc[0]
    slow = predicted(rows_csv, *HEAD, "--cluster", "a100-pcie")["predicted_s"].iloc[0]
    fast = predicted(rows_csv, *HEAD, "--cluster", "dgx-h100")["predicted_s"].iloc[0]
    assert fast < nvlink == named < slow


def test_an_unknown_gpu_spoils_its_row_only(rows_csv: Path) -> None:
    header = "layers,hidden,heads,seq,dp,tp,pp,mbs,gbs,gpu_type\n"
    rows = "".join(
        f"24,1024,16,1024,1,1,1,1,8,{gpu}\n" for gpu in ("P100-16GB", "A100_80gb", "H200")
    )
    rows_csv.write_text(header + rows, encoding="utf-8")
    found = predicted(rows_csv)
    assert list(found["feasible"]) == [False, True, True]
    assert list(found["calibrated"].iloc[1:]) == [True, False]
    assert "unknown GPU 'P100-16GB'" in found["reason"].iloc[0]
    assert math.isnan(found["predicted_s"].iloc[0])


@pytest.mark.parametrize("preset", ["calculon", "improved"])
def test_bad_cells_spoil_their_row_only(rows_csv: Path, preset: str) -> None:
    text = (
        "gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iteration_ms,dist,vpp,remark\n"
        "8,32,4,1024,16,24,1024,2,2,2,,ddp,1,no time\n"
        "8,32,4,1024,16,,1024,2,2,2,250,ddp,,layers\n"
        "8,32,4,1024,16,24,1024,2,2,2,250,ring,1,dist\n"
        "8,1e19,4,1024,16,24,1024,2,2,2,250,,1,gbs\n"
        "8,032,4,1024,16,24,1024,2,2,2,0,ddp,1.0,zero time\n"
    )
    rows_csv.write_text(text, encoding="utf-8")
    rows = predicted(rows_csv, "--preset", preset).set_index("remark")
    assert list(rows["feasible"]) == [True, False, False, False, True]
    assert rows["predicted_s"].notna().tolist() == list(rows["feasible"])
    assert rows["reason"].notna().tolist() == [not f for f in rows["feasible"]]
    assert "gbs = 1e19" in rows.loc["gbs", "reason"]
    written = rows_csv.with_name("out.csv").read_text(encoding="utf-8").splitlines()
    assert all(new.startswith(old) for old, new in zip(text.splitlines(), written, strict=True))


def test_a_system_without_gpus_or_empty_spoils_its_row_only(rows_csv: Path) -> None:
    head = "layers,hidden,heads,ffn,seq,system,dp,tp,pp,mbs,gbs,seconds\n"
    systems = ("a100_80g_0gpu_node", "", "a100_80g_2gpu_node")
    lines = "".join(f"24,2048,16,8192,1024,{s},2,2,1,4,64,1\n" for s in systems)
    rows_csv.write_text(head + lines, encoding="utf-8")
    for preset in ("calculon", "improved"):
        assert list(predicted(rows_csv, "--preset", preset)["feasible"]) == [False, False, True]


def test_rows_of_older_and_pcie_gpus_get_a_number(rows_csv: Path) -> None:
    gpus = ("V100-32GB", "Tesla V100-SXM2-16GB", "A100-PCIE-80GB", "H100-PCIe")
    head = "layers,hidden,heads,seq,dp,tp,pp,mbs,gbs,gpu_type,precision\n"
    lines = "".join(f"24,1024,16,1024,1,1,1,1,8,{gpu},fp16\n" for gpu in gpus)
    rows_csv.write_text(head + lines, encoding="utf-8")
    found = predicted(rows_csv)
    assert found["feasible"].all()
    assert list(found["calibrated"]) == [False, False, True, True]
    assert found["predicted_s"].iloc[0] > 2 * found["predicted_s"].iloc[2]


def test_each_shape_is_checked_once(rows_csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, line = ROWS.splitlines()[:2]
    rows_csv.write_text("\n".join([header, *[line] * 500]) + "\n", encoding="utf-8")
    checked = []
    monkeypatch.setattr(row_specs, "model_of", lambda row: checked.append(row))
    assert len(predicted(rows_csv, "--preset", "improved")) == 500
    assert len(checked) == 1


def test_the_rows_are_never_overwritten(rows_csv: Path) -> None:
    failed = invoke("predict", str(rows_csv), "--out", str(rows_csv.parent / "." / "rows.csv"))
    assert failed.exit_code == 2
    assert "it is ROWS.csv itself" in failed.stderr
    assert rows_csv.read_text(encoding="utf-8") == ROWS


@pytest.mark.parametrize(
    ("content", "arguments", "sentence"),
    [
        ("a,b\n1,2\n", [], "column 'layers' is missing"),
        (ROWS, ["--preset", "improve"], "unknown preset 'improve'"),
        (ROWS, ["--cluster", "dgx-a10"], "did you mean 'dgx-a100'?"),
        (ROWS, ["--out", "no/folder/out.csv"], "--out no/folder/out.csv"),
    ],
)
def test_predict_refuses_in_one_sentence(
    rows_csv: Path, content: str, arguments: list[str], sentence: str
) -> None:
    rows_csv.write_text(content, encoding="utf-8")
    out = str(rows_csv.with_name("out.csv"))
    failed = invoke("predict", str(rows_csv), "--out", out, *arguments)
    assert failed.exit_code == 2
    assert sentence in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_without_a_file_the_rows_go_to_stdout(rows_csv: Path) -> None:
    expected = predicted(rows_csv)
    done = invoke("predict", str(rows_csv))
    assert done.exit_code == 0
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(done.stdout)), expected)
    assert done.stderr == f"{rows_csv}: 6 rows by improved, 1 of them feasible\n"


def test_json_holds_the_same_rows_and_null_for_what_is_unknown(rows_csv: Path) -> None:
    expected = predicted(rows_csv)
    rows = json.loads(invoke("predict", str(rows_csv), "--json").stdout)
    assert list(rows[0]) == list(expected.columns)
    assert rows[0]["predicted_s"] == pytest.approx(expected["predicted_s"].iloc[0], rel=1e-12)
    assert [row["predicted_s"] is None for row in rows] == list(expected["predicted_s"].isna())
    assert rows[0]["reason"] == ""
    refused = invoke("predict", str(rows_csv), "--json", "--out", "x.csv")
    assert refused.exit_code == 2
    assert "give one of them" in refused.stderr
