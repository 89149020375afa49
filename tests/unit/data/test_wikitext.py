"""WikiText: from disk and through `datasets`, the same text, split and cut as the corpus is."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.data import prepare
from cona.data.corpora import is_corpus, read_corpus
from cona.data.wikitext import HUB_FORM, HUB_NAME, articles
from cona.errors import DataError

TRAIN = """ 
 = Robert <unk> = 
 
 Robert <unk> is an English film , television and theatre actor . He had a one @-@ off role . 
 It sold 1 @,@ 234 @,@ 567 copies at 2 @.@ 5 pounds . 
 
 = = Career = = 
 
 Text of a section . 
 = not a heading = 
 More text . 
 
 = = = 2000 – 2005 = = = 
 
 In 2000 he played . 
 
 = E = mc = 
 
 Another article . 
 
"""
VALID = " \n = Homarus gammarus = \n \n A lobster . \n \n"
TEST = " \n = Du Fu = \n \n A poet . \n \n"
FIRST = """= Robert <unk> =

Robert <unk> is an English film , television and theatre actor . He had a one-off role .
It sold 1,234,567 copies at 2.5 pounds .

= = Career = =

Text of a section .
= not a heading =
More text .

= = = 2000 – 2005 = = =

In 2000 he played ."""


def fill(folder: Path, ending: str = ".tokens", train: str = TRAIN) -> Path:
    folder.mkdir(exist_ok=True)
    for part, text in (("train", train), ("valid", VALID), ("test", TEST)):
        (folder / f"wiki.{part}{ending}").write_bytes(text.encode())
    return folder


def rows(text: str) -> list[str]:
    """Return a text as `datasets` has it: a line is a row, a blank line an empty one."""
    return [line if line.strip() else "" for line in text.splitlines(keepends=True)]


# --- from disk ------------------------------------------------------------------------------------


def test_splits_are_the_corpus_own_and_documents_its_articles(tmp_path: Path) -> None:
    documents = read_corpus(f"wikitext:{fill(tmp_path)}").documents()
    assert [d.strip() for d in documents["train"]] == [FIRST, "= E = mc =\n\nAnother article ."]
    assert [d.strip() for d in documents["valid"]] == ["= Homarus gammarus =\n\nA lobster ."]
    assert [d.strip() for d in documents["probe"]] == ["= Du Fu =\n\nA poet ."]


def test_the_raw_form_is_preferred(tmp_path: Path) -> None:
    fill(tmp_path, ".raw", TRAIN.replace("<unk>", "Boulter"))
    documents = read_corpus(f"wikitext:{fill(tmp_path)}").documents()
    assert "Robert Boulter is" in documents["train"][0]


def test_the_digest_follows_text_and_split(tmp_path: Path) -> None:
    one, same = (read_corpus(f"wikitext:{fill(tmp_path / name)}").digest for name in "ab")
    other = read_corpus(f"wikitext:{fill(tmp_path / 'c', train=TRAIN + ' More . ')}").digest
    swapped = fill(tmp_path / "d")
    (swapped / "wiki.valid.tokens").write_text(TEST)
    (swapped / "wiki.test.tokens").write_text(VALID)
    assert one == same
    assert len({one, other, read_corpus(f"wikitext:{swapped}").digest}) == 3


@pytest.mark.parametrize("missing", ["train", "valid", "test"])
def test_a_missing_file_is_one_sentence(tmp_path: Path, missing: str) -> None:
    (fill(tmp_path) / f"wiki.{missing}.tokens").unlink()
    with pytest.raises(DataError, match=r"lacks wiki\.train\.tokens.*unpack a WikiText archive"):
        read_corpus(f"wikitext:{tmp_path}")


def test_a_file_of_other_bytes_is_one_sentence(tmp_path: Path) -> None:
    (fill(tmp_path) / "wiki.valid.tokens").write_bytes(b"abc\xff")
    with pytest.raises(DataError, match=r"wiki\.valid\.tokens is not UTF-8 text \(byte 3\)"):
        read_corpus(f"wikitext:{tmp_path}")


def test_it_is_prepared_like_any_corpus(tmp_path: Path, cache: Path, make_model: Any) -> None:
    prepared = prepare(f"wikitext:{fill(tmp_path, train=TRAIN * 20)}", make_model())
    ends = {s: int((tokens == prepared.end_id).sum()) for s, tokens in prepared.tokens.items()}
    assert ends == {"train": 40, "valid": 1, "probe": 1}


# --- articles -------------------------------------------------------------------------------------

LINE = st.sampled_from(["= A =", "= = B = =", "text", "", "= 2", "= = =", "= =", "=", "x = y ="])


@given(st.lists(LINE, max_size=30).map("\n".join))
def test_articles_join_to_the_text_and_begin_with_a_title(text: str) -> None:
    found = articles(text)
    assert "".join(found) == text
    assert all(article.lstrip("\n").startswith("= A =") for article in found[1:])


@given(st.integers(0, 8), st.booleans())
def test_every_title_begins_an_article(count: int, has_preface: bool) -> None:
    text = "Preface .\n\n" * has_preface + "= A =\n\n= = B = =\n\ntext\n\n" * count
    assert len(articles(text)) == count + has_preface


# --- through datasets -----------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put a library `datasets` in place whose loader reads local Parquet, or raises."""
    state: dict[str, Any] = {"asked": None, "error": None}

    def load_dataset(*asked: str) -> Any:
        state["asked"] = asked
        if state["error"]:
            raise state["error"]
        texts = {"train": TRAIN, "validation": VALID, "test": TEST}
        for split, text in texts.items():
            pq.write_table(pa.table({"text": rows(text)}), tmp_path / f"{split}.parquet")
        return {s: _Rows(pq.read_table(tmp_path / f"{s}.parquet")) for s in texts}

    library, errors = types.ModuleType("datasets"), types.ModuleType("datasets.exceptions")
    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    errors.DatasetsError = KeyError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setitem(sys.modules, "datasets.exceptions", errors)
    return state


class _Rows:
    def __init__(self, table: Any) -> None:
        self._table = table

    def __getitem__(self, wanted: slice) -> dict[str, list[str]]:
        assert wanted == slice(None)
        return {name: self._table[name].to_pylist() for name in self._table.column_names}


def test_the_hub_gives_the_same_text_as_the_disk(hub: dict[str, Any], tmp_path: Path) -> None:
    loaded = read_corpus("wikitext-103")
    assert hub["asked"] == (HUB_NAME, HUB_FORM)
    assert loaded.digest == read_corpus(f"wikitext:{fill(tmp_path / 'disk')}").digest


@pytest.mark.parametrize("error", [ConnectionError("no\nnetwork"), ValueError(), KeyError("x")])
def test_offline_says_what_to_do(hub: dict[str, Any], error: Exception) -> None:
    hub["error"] = error
    with pytest.raises(DataError) as caught:
        read_corpus("wikitext-103")
    told = str(caught.value)
    assert "cona data --data wikitext-103" in told
    assert "HF_HOME" in told
    assert "wikitext:<folder>" in told
    assert "\n" not in told


def test_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'cona-bench\[wikitext\]', or unpack"):
        read_corpus("wikitext-103")


def test_the_real_library_reads_local_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("datasets", reason="the extra `wikitext` is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = {}
    for split, text in (("train", TRAIN), ("validation", VALID), ("test", TEST)):
        files[split] = str(tmp_path / f"{split}.parquet")
        pq.write_table(pa.table({"text": rows(text)}), files[split])
    load, cache = library.load_dataset, str(tmp_path / "hf")
    monkeypatch.setattr(
        library, "load_dataset", lambda *_: load("parquet", data_files=files, cache_dir=cache)
    )
    disk = read_corpus(f"wikitext:{fill(tmp_path / 'disk')}")
    assert read_corpus("wikitext-103").digest == disk.digest


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("stdlib", True),
        ("wikitext-103", True),
        ("wikitext:folder", True),
        ("text:a", True),
        ("wikitext", False),
        ("wikitext:", False),
        ("wikitext-2", False),
        ("stdlib:x", False),
        ("", False),
    ],
)
def test_names(name: str, is_valid: bool) -> None:
    assert is_corpus(name) == is_valid
