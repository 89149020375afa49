"""Tokenizers: byte-level BPE for GPT and Llama, WordPiece for BERT, trained on the train split.

Training is deterministic, and text that spells a special token is encoded as ordinary text.
Source: method.md 6 and 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cona.data.corpora import cut_at_lines
from cona.data.tokenizer_training import (
    ALPHABET_SHARE,
    END_OF_TEXT,
    MAX_ALPHABET,
    SAMPLE_CHARS,
    TRAINING_BYTES_PER_ENTRY,
    WORDPIECE_SPECIALS,
    train_bpe,
    train_wordpiece,
    training_sample,
)
from cona.errors import DataError

if TYPE_CHECKING:
    from cona.specs import ModelSpec

_CHUNK_CHARS = 2**18  # split into words at once: bounds the memory of a large file
# No token crosses these. BPE: GPT-2's words, so text that spells the end token falls apart;
# WordPiece: whatever white space divides.
_WORDS = {
    "bpe": re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"),
    "wordpiece": re.compile(r"[^ \t\n\r]+"),
}


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """What determines a tokenizer, apart from the text."""

    kind: Literal["bpe", "wordpiece"]
    """Byte-level BPE, or WordPiece over lower-cased words as in BERT uncased."""
    vocab_size: int
    """Entries asked for; a small corpus may not fill them."""

    @classmethod
    def of(cls, model: ModelSpec) -> TokenizerSettings:
        """Return the settings of a model's family.

        Raises:
            DataError: the vocabulary cannot hold the alphabet and the special tokens.
        """
        kind: Literal["bpe", "wordpiece"] = "bpe" if model.is_causal else "wordpiece"
        smallest = 257 if kind == "bpe" else 64
        if model.vocab_size < smallest:
            raise DataError(
                f"{model.name}: vocab_size {model.vocab_size} is too small for a {kind} "
                f"tokenizer; smallest: {smallest}"
            )
        return cls(kind=kind, vocab_size=model.vocab_size)

    def key(self) -> dict[str, Any]:
        """Return everything that can change the tokens of a text, for the content hash."""
        constants = [
            TRAINING_BYTES_PER_ENTRY,
            ALPHABET_SHARE,
            MAX_ALPHABET,
            SAMPLE_CHARS,
            _CHUNK_CHARS,
        ]
        return {**asdict(self), "constants": constants, "tokenizers": version("tokenizers")}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Ids of a tokenizer."""

    vocab_size: int
    """Number of ids; they are 0 .. vocab_size - 1."""
    end_id: int
    """Ends each document."""
    mask_id: int | None
    """Hides a token from BERT; None for causal models."""
    special_ids: tuple[int, ...]
    """Ids that stand for no text, the end token's among them."""


class TextEncoder:
    """A trained tokenizer."""

    def __init__(self, settings: TokenizerSettings, documents: Sequence[str]) -> None:
        """Train on documents.

        Args:
            settings: kind and size.
            documents: texts of the train split; a spread sample of them if they are many.
        """
        self.settings = settings
        sample = list(training_sample(documents, settings.vocab_size * TRAINING_BYTES_PER_ENTRY))
        train = train_bpe if settings.kind == "bpe" else train_wordpiece
        self._tokenizer = train(settings.vocab_size, sample)
        self._word_ids: dict[str, list[int]] = {}

    @property
    def vocabulary(self) -> Vocabulary:
        """The ids; special tokens come first."""
        is_bpe = self.settings.kind == "bpe"
        specials = (END_OF_TEXT,) if is_bpe else WORDPIECE_SPECIALS
        ids = self._tokenizer.get_vocab()
        return Vocabulary(
            vocab_size=len(ids),
            end_id=ids[END_OF_TEXT if is_bpe else "[SEP]"],
            mask_id=None if is_bpe else ids["[MASK]"],
            special_ids=tuple(sorted(ids[token] for token in specials)),
        )

    def encode(self, documents: Iterable[str]) -> NDArray[np.unsignedinteger[Any]]:
        """Return the token stream of documents, each followed by the end token; shape [tokens]."""
        vocabulary = self.vocabulary
        dtype = np.uint16 if vocabulary.vocab_size <= 2**16 else np.uint32
        end = np.array([vocabulary.end_id], dtype)
        parts = [np.empty(0, dtype)]
        for document in documents:
            for chunk in cut_at_lines(document, _CHUNK_CHARS):
                ids = map(self._word_ids.__getitem__, self._split(chunk))
                parts.append(np.fromiter(chain.from_iterable(ids), dtype))
            parts.append(end)
        return np.concatenate(parts)

    def _split(self, text: str) -> list[str]:
        """Split a text into words and see to it that the ids of each are known.

        Words repeat, so looking them up is three times as fast as encoding the text.
        """
        words = _WORDS[self.settings.kind].findall(text)
        unknown = [word for word in dict.fromkeys(words) if word not in self._word_ids]
        encodings = self._tokenizer.encode_batch_fast(unknown, add_special_tokens=False)
        self._word_ids |= {word: e.ids for word, e in zip(unknown, encodings, strict=True)}
        return words

    def token_bytes(self) -> NDArray[np.int64] | None:
        """Return the UTF-8 bytes that each id stands for; shape [vocab_size].

        They add up to the text's bytes exactly (end tokens stand for none). None for WordPiece,
        which drops spaces and case, so that bits per byte would mean nothing.
        """
        if self.settings.kind != "bpe":
            return None
        num_bytes = np.zeros(self.vocabulary.vocab_size, np.int64)
        for token, index in self._tokenizer.get_vocab().items():
            num_bytes[index] = len(token)  # byte-level BPE spells each byte as one character
        num_bytes[self.vocabulary.end_id] = 0
        return num_bytes

    def to_json(self) -> str:
        """Return the tokenizer in the `tokenizers` library's JSON format."""
        text: str = self._tokenizer.to_str(pretty=True)
        return text
