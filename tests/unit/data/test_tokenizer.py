from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from cona.data.tokenizer import (
    TextEncoder,
    TokenizerSettings,
    Vocabulary,
)
from cona.data.tokenizer_training import END_OF_TEXT, training_sample
from cona.errors import DataError
from cona.specs import ModelSpec

TEXT = [
    "def add(first, second):\n    return first + second\n\n\n" * 20,
    "The quick brown fox jumps over the lazy dog; naïve façade, 世界!\n" * 20,
]
# Every pair of letters occurs equally often: training is decided by ties alone.
TIES = [" ".join(a + b + c for a in "abcdefgh" for b in "stuvwxyz" for c in "klmnopq")]

# Python counts the four information separators as white space, the library does not.
ASCII = st.characters(max_codepoint=127, exclude_characters="\x1c\x1d\x1e\x1f")


@pytest.fixture(scope="module")
def bpe() -> TextEncoder:
    return TextEncoder(TokenizerSettings(kind="bpe", vocab_size=300), TEXT)


@pytest.fixture(scope="module")
def wordpiece() -> TextEncoder:
    return TextEncoder(TokenizerSettings(kind="wordpiece", vocab_size=200), TEXT)


def library(encoder: TextEncoder, tmp_path: Path) -> tokenizers.Tokenizer:
    (tmp_path / "tokenizer.json").write_text(encoder.to_json(), encoding="utf-8")
    return tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


# --- both kinds ---------------------------------------------------------------------------------


def test_vocabulary_ids(bpe: TextEncoder, wordpiece: TextEncoder) -> None:
    assert bpe.vocabulary == Vocabulary(vocab_size=300, end_id=0, mask_id=None, special_ids=(0,))
    assert wordpiece.vocabulary == Vocabulary(
        vocab_size=wordpiece.vocabulary.vocab_size, end_id=3, mask_id=4, special_ids=(0, 1, 2, 3, 4)
    )
    assert 100 < wordpiece.vocabulary.vocab_size <= 200


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_each_document_ends_with_one_end_token(kind: str, request: pytest.FixtureRequest) -> None:
    encoder: TextEncoder = request.getfixturevalue(kind)
    end = encoder.vocabulary.end_id
    spelled = [f"a {END_OF_TEXT} b", "c [SEP] [MASK] [PAD] [CLS] d", "e"]
    stream = encoder.encode(spelled)
    assert (stream == end).sum() == 3  # text that spells a special token does not become one
    assert stream[-1] == end
    assert np.array_equal(stream, np.concatenate([encoder.encode([text]) for text in spelled]))
    assert encoder.encode([]).shape == (0,)


def test_wordpiece_text_that_spells_special_tokens_is_text(wordpiece: TextEncoder) -> None:
    stream = wordpiece.encode(["[MASK] [PAD] [CLS]"])
    assert not np.isin(stream, [0, 2, 4]).any()


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_training_is_the_same_in_another_process(kind: str) -> None:
    code = (
        "import hashlib, sys; from cona.data.tokenizer import *;"
        f"e = TextEncoder(TokenizerSettings(kind='{kind}', vocab_size=400), {TIES!r});"
        f"sys.stdout.write(hashlib.sha256(e.encode({TIES!r}).tobytes()).hexdigest())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        for _ in range(3)
    }
    assert len(runs) == 1


@given(st.lists(st.text(alphabet=ASCII, max_size=60), min_size=1))
def test_word_lookup_equals_the_library_on_ascii(
    bpe: TextEncoder,
    wordpiece: TextEncoder,
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
) -> None:
    text = "\n".join(lines)
    for encoder in (bpe, wordpiece):
        reference = library(encoder, tmp_path_factory.mktemp("tokenizer"))
        reference.encode_special_tokens = True
        expected = reference.encode(text, add_special_tokens=False).ids
        assert encoder.encode([text])[:-1].tolist() == expected


def test_large_documents_are_cut_only_at_line_ends(bpe: TextEncoder) -> None:
    line = "x" * 1000 + "\n"
    assert np.array_equal(bpe.encode([line * 600])[:-1], np.tile(bpe.encode([line])[:-1], 600))


def test_stream_type_holds_the_largest_id(
    bpe: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bpe.encode(["a"]).dtype == np.uint16
    for size, dtype in ((2**16, np.uint16), (2**16 + 1, np.uint32)):
        large = Vocabulary(vocab_size=size, end_id=size - 1, mask_id=None, special_ids=(0,))
        monkeypatch.setattr(TextEncoder, "vocabulary", large)
        stream = bpe.encode(["a"])
        assert stream.dtype == dtype
        assert stream[-1] == size - 1


def test_training_reads_a_spread_sample() -> None:
    documents = [f"{i:07d}\n" * 2048 for i in range(64)]  # 64 stretches of 16 KiB
    sample = list(training_sample(documents, 2**18))
    assert sum(map(len, sample)) == 2**18
    assert {int(chunk[:7]) // 16 for chunk in sample} == {0, 1, 2, 3}
    assert list(training_sample(documents, 2**30)) == documents


# --- byte-level BPE -----------------------------------------------------------------------------


@given(st.text(max_size=100))
def test_bpe_loses_nothing(
    bpe: TextEncoder, tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    stream = bpe.encode([text])
    decoder = library(bpe, tmp_path_factory.mktemp("tokenizer"))
    assert decoder.decode(stream[:-1].tolist(), skip_special_tokens=False) == text
    num_bytes = bpe.token_bytes()
    assert num_bytes is not None
    assert num_bytes[stream].sum() == len(text.encode())


def test_bpe_token_bytes_by_hand(bpe: TextEncoder) -> None:
    num_bytes = bpe.token_bytes()
    assert num_bytes is not None
    assert num_bytes.shape == (300,)
    assert num_bytes[0] == 0  # the end token stands for no text
    assert (num_bytes[1:257] == 1).all()  # one id per byte
    assert (num_bytes[257:] >= 2).all()  # merges


def test_bpe_of_a_small_corpus_stays_below_the_size() -> None:
    encoder = TextEncoder(TokenizerSettings(kind="bpe", vocab_size=10_000), ["ab ab ab"])
    assert 257 < encoder.vocabulary.vocab_size < 270


# --- WordPiece ----------------------------------------------------------------------------------


def test_wordpiece_lower_cases_and_has_no_bytes(wordpiece: TextEncoder) -> None:
    assert wordpiece.token_bytes() is None
    assert np.array_equal(wordpiece.encode(["The FOX"]), wordpiece.encode(["the fox"]))


def test_wordpiece_fills_the_vocabulary_when_the_text_allows() -> None:
    encoder = TextEncoder(TokenizerSettings(kind="wordpiece", vocab_size=400), TIES)
    assert encoder.vocabulary.vocab_size == 400


def test_wordpiece_knows_its_alphabet_and_no_rare_character() -> None:
    text = ["abcdefghijk" * 100 + " zz"]  # 64 entries: the 10 most frequent characters, by code
    encoder = TextEncoder(TokenizerSettings(kind="wordpiece", vocab_size=64), text)
    assert encoder.vocabulary.vocab_size <= 64
    unknown = 1
    assert unknown not in encoder.encode(["a b j ja"])
    assert encoder.encode(["k", "z"]).tolist() == [unknown, 3, unknown, 3]


# --- settings -----------------------------------------------------------------------------------


def test_settings_follow_the_family(make_model: Callable[..., ModelSpec]) -> None:
    assert TokenizerSettings.of(make_model("gpt")) == TokenizerSettings.of(make_model("llama"))
    assert TokenizerSettings.of(make_model("gpt")).kind == "bpe"
    assert TokenizerSettings.of(make_model("bert")).kind == "wordpiece"


def test_settings_key_tells_everything_that_matters() -> None:
    key = TokenizerSettings(kind="bpe", vocab_size=300).key()
    assert key["kind"] == "bpe"
    assert key["vocab_size"] == 300
    assert key["tokenizers"] == tokenizers.__version__


@pytest.mark.parametrize(("family", "smallest"), [("gpt", 257), ("bert", 64)])
def test_too_small_a_vocabulary(
    make_model: Callable[..., ModelSpec], family: str, smallest: int
) -> None:
    assert TokenizerSettings.of(make_model(family, vocab_size=smallest)).vocab_size == smallest
    with pytest.raises(DataError, match=f"vocab_size {smallest - 1} is too small.*: {smallest}"):
        TokenizerSettings.of(make_model(family, vocab_size=smallest - 1))
