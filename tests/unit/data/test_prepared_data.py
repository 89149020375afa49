from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from cona.data import EvaluationSamples, TrainingSamples, cache_dir, prepare, prepared
from cona.data.corpora import SPLITS, read_corpus
from cona.data.tokenizer import TextEncoder, TokenizerSettings
from cona.errors import DataError, StorageError
from cona.specs import ModelSpec

MakeModel = Callable[..., ModelSpec]

PREPARE = """
import sys
from cona import data
from cona.specs import ModelSpec
model = ModelSpec.model_validate_json(sys.argv[2])
sys.stdout.write(data.prepare(sys.argv[1], model).content_hash)
"""


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """A folder of three files, 60 kB in all."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(3):
        lines = (f"line {n} of file {i}: the sum is {n * i} – naïve\n" for n in range(500))
        (folder / f"{i}.txt").write_text("".join(lines), encoding="utf-8")
    return f"text:{folder}"


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "data").iterdir())


# --- what is prepared ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_causal_streams_hold_exactly_the_text(
    corpus: str, cache: Path, make_model: MakeModel, family: str
) -> None:
    data = prepare(corpus, make_model(family))
    documents = read_corpus(corpus).documents()
    decoder = tokenizers.Tokenizer.from_file(
        str(cache / "data" / data.content_hash / "tokenizer.json")
    )
    assert (data.vocab_size, data.end_id, data.mask_id, data.special_ids) == (300, 0, None, (0,))
    assert (data.seq_length, data.is_causal) == (8, True)
    assert data.token_bytes is not None
    for split in SPLITS:
        stream = data.tokens[split]
        assert isinstance(stream, np.memmap)
        texts = decoder.decode(stream.tolist(), skip_special_tokens=False).split("<|endoftext|>")
        assert texts == [*documents[split], ""]
        assert data.token_bytes[stream].sum() == sum(len(d.encode()) for d in documents[split])


def test_bert_streams(corpus: str, cache: Path, make_model: MakeModel) -> None:
    data = prepare(corpus, make_model("bert"))
    assert (data.end_id, data.mask_id, data.special_ids) == (3, 4, (0, 1, 2, 3, 4))
    assert (data.token_bytes, data.is_causal) == (None, False)
    batch = TrainingSamples(data, 0).batch(0, 50)
    assert batch.tokens.shape == (50, 8)
    assert (batch.loss_mask.sum(axis=1) == 1).all()
    assert batch.tokens.max() < data.vocab_size <= 300


def test_tokenizer_is_trained_on_the_train_split_only(
    corpus: str, cache: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    original = TextEncoder.__init__

    def spy(self: TextEncoder, settings: TokenizerSettings, documents: list[str]) -> None:
        seen.extend(documents)
        original(self, settings, documents)

    monkeypatch.setattr(TextEncoder, "__init__", spy)
    prepare(corpus, make_model())
    assert seen == read_corpus(corpus).documents()["train"]


def test_splits_can_be_evaluated(corpus: str, cache: Path, make_model: MakeModel) -> None:
    data = prepare(corpus, make_model())
    evaluation = EvaluationSamples(data, "valid", 10)
    (batch,) = evaluation.batches(10)
    assert data.token_bytes is not None
    assert evaluation.num_bytes == data.token_bytes[batch.labels].sum() > 0


# --- content hash and cache ---------------------------------------------------------------------


def test_second_call_reads_the_cache(
    corpus: str, cache: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(corpus, make_model())
    monkeypatch.setattr(prepared, "TextEncoder", None)  # whoever tokenizes again, fails
    second = prepare(corpus, make_model())
    longer = prepare(corpus, make_model("llama", seq_length=16))
    assert first.content_hash == second.content_hash == longer.content_hash
    assert entries(cache) == [first.content_hash]
    assert second.vocabulary == first.vocabulary
    assert all(np.array_equal(first.tokens[s], second.tokens[s]) for s in SPLITS)
    assert longer.windows("train").shape[1] == 17


def test_hash_follows_text_and_tokenizer_settings(
    corpus: str, cache: Path, make_model: MakeModel
) -> None:
    hashes = [
        prepare(corpus, make_model()).content_hash,
        prepare(corpus, make_model(vocab_size=301)).content_hash,
        prepare(corpus, make_model("bert")).content_hash,
    ]
    Path(corpus.removeprefix("text:"), "0.txt").write_text("other text\n" * 900)
    hashes.append(prepare(corpus, make_model()).content_hash)
    assert len(set(hashes)) == 4
    assert all(len(h) == 16 and int(h, 16) >= 0 for h in hashes)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONA_CACHE_DIR", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_dir() == Path("/a")
    monkeypatch.delenv("CONA_CACHE_DIR")
    assert cache_dir() == Path("/b/cona")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/c/.cache/cona")


def test_two_processes_may_prepare_at_once(corpus: str, cache: Path, make_model: MakeModel) -> None:
    command = [sys.executable, "-c", PREPARE, corpus, make_model().model_dump_json()]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    results = [process.communicate() for process in processes]
    expected = prepare(corpus, make_model()).content_hash.encode()
    assert results == [(expected, b"")] * 2
    assert entries(cache) == [expected.decode()]


def test_the_second_of_two_writers_keeps_the_first_ones_entry(
    corpus: str, cache: Path, make_model: MakeModel
) -> None:
    folder = cache / "data" / prepare(corpus, make_model()).content_hash
    (folder / "first").touch()
    prepared._fill(folder, read_corpus(corpus), TokenizerSettings.of(make_model()))
    assert (folder / "first").exists()
    assert entries(cache) == [folder.name]


def test_an_entry_appears_whole_by_one_rename(
    corpus: str, cache: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    renames: list[tuple[list[str], bool, Path]] = []
    original = Path.rename

    def spy(self: Path, target: Path) -> Path:
        renames.append((sorted(p.name for p in self.iterdir()), target.exists(), target))
        return original(self, target)

    monkeypatch.setattr(Path, "rename", spy)
    folder = cache / "data" / prepare(corpus, make_model()).content_hash
    assert renames == [(sorted(p.name for p in folder.iterdir()), False, folder)]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.fault("disk full")
def test_an_interrupted_preparation_leaves_nothing(
    corpus: str,
    cache: Path,
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(prepared, "write_synced", fail)
        expected = StorageError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected):
            prepare(corpus, make_model())
    assert entries(cache) == []
    assert len(prepare(corpus, make_model()).tokens) == 3


def test_cache_that_cannot_be_written(
    corpus: str, tmp_path: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CONA_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"cannot write .*: Not a directory; .*CONA_CACHE_DIR"):
        prepare(corpus, make_model())


@pytest.mark.parametrize("name", ["vocabulary.json", "train.npy", "token_bytes.npy"])
@pytest.mark.parametrize("keep", [None, 0, 20])
@pytest.mark.fault("damaged cache")
def test_damaged_cache(
    corpus: str, cache: Path, make_model: MakeModel, name: str, keep: int | None
) -> None:
    path = cache / "data" / prepare(corpus, make_model()).content_hash / name
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    with pytest.raises(DataError, match=r"the cache .* is damaged .*; delete that folder"):
        prepare(corpus, make_model())


# --- too little text ----------------------------------------------------------------------------


def test_corpus_shorter_than_one_sequence_per_split(
    tmp_path: Path, cache: Path, make_model: MakeModel
) -> None:
    path = tmp_path / "short.txt"
    path.write_text("a few words, say\n" * 40)
    with pytest.raises(
        DataError, match=r"text:.*: split 'valid' has \d+ tokens, shorter than one sequence \(33\)"
    ):
        prepare(f"text:{path}", make_model(seq_length=32))


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("text", ["x", "one line of text", "\n" * 40 + "x", "x" + "\n" * 400])
def test_hardly_any_text(
    tmp_path: Path, cache: Path, make_model: MakeModel, family: str, text: str
) -> None:
    path = tmp_path / "short.txt"
    path.write_text(text)
    with pytest.raises(DataError, match="shorter than one sequence"):
        prepare(f"text:{path}", make_model(family))


# --- costs --------------------------------------------------------------------------------------


def test_import_loads_neither_torch_nor_tokenizers() -> None:
    code = "import sys, cona.data; sys.exit(bool({'torch', 'tokenizers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_stdlib_takes_seconds_and_then_none(
    cache: Path, make_model: MakeModel, family: str
) -> None:
    model = make_model(family, vocab_size=1024, seq_length=64)
    first = prepare("stdlib", model)
    assert first.vocab_size == 1024
    assert min(len(first.windows(split)) for split in SPLITS) > 500
    start = time.process_time()
    prepare("stdlib", model)
    assert time.process_time() - start < 0.5
