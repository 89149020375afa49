"""Prepare a corpus for a model: tokenize once, keep the tokens in a cache, map them into memory.

Source: method.md 7. The content hash names the cache entry and is recorded in every run.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cona.config import content_hash
from cona.data.corpora import SPLITS, Corpus, read_corpus
from cona.data.tokenizer import TextEncoder, TokenizerSettings, Vocabulary
from cona.errors import DataError, nearest
from cona.specs import ModelSpec
from cona.storage import discard, draft_of, write_synced, writing

Tokens = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedData:
    """Token streams of a corpus, for one model."""

    content_hash: str
    """Hash of the text, the split rule and the tokenizer settings; 16 hex digits."""
    vocabulary: Vocabulary
    """The tokenizer's ids; at most as many as the model knows."""
    tokens: Mapping[str, Tokens]
    """Memory-mapped stream of each split (train, valid, probe), shape [tokens]."""
    token_bytes: NDArray[np.int64] | None
    """UTF-8 bytes of each id, shape [vocab_size]; None for WordPiece."""
    seq_length: int
    """Tokens that the model sees in a sample."""
    is_causal: bool
    """Whether the model predicts the next token (True) or masked tokens (False)."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.vocabulary.vocab_size

    @property
    def end_id(self) -> int:
        """Id of the token that ends each document."""
        return self.vocabulary.end_id

    @property
    def mask_id(self) -> int | None:
        """Id of the mask token; None for causal models."""
        return self.vocabulary.mask_id

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids that stand for no text."""
        return self.vocabulary.special_ids

    def windows(self, split: str) -> Tokens:
        """Return a split's samples: consecutive slices of its stream, without overlap.

        Args:
            split: train, valid or probe.

        Returns:
            Shape [windows, seq + 1] for causal models (the last token is only a target), else
            [windows, seq]; a view of the mapped stream, whose remainder is left out.

        Raises:
            DataError: no such split.
        """
        if split not in self.tokens:
            raise DataError(f"unknown split '{split}': {nearest(split, self.tokens)}")
        stream, length = self.tokens[split], self.seq_length + self.is_causal
        return stream[: len(stream) // length * length].reshape(-1, length)


def cache_dir() -> Path:
    """Return the cache folder: $CONA_CACHE_DIR, $XDG_CACHE_HOME/cona or ~/.cache/cona."""
    if chosen := os.environ.get("CONA_CACHE_DIR"):
        return Path(chosen)
    if user_cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(user_cache) / "cona"
    try:
        return Path.home() / ".cache" / "cona"
    except RuntimeError as error:
        raise DataError("there is no home folder to cache texts in; set CONA_CACHE_DIR") from error


def prepare(corpus: str, model: ModelSpec) -> PreparedData:
    """Return a corpus as tokens for a model; tokenizes only what the cache does not hold.

    Args:
        corpus: e.g. `stdlib` or `text:<path>`, see ``read_corpus``.
        model: its family chooses the tokenizer, its vocab_size and seq_length the sizes.

    Raises:
        DataError: the corpus cannot be read, a split is shorter than one sample, or the cache
            is damaged.
        StorageError: the cache cannot be written.
    """
    source, settings = read_corpus(corpus), TokenizerSettings.of(model)
    key = content_hash(source.digest, settings.key())
    folder = cache_dir() / "data" / key
    if not folder.is_dir():
        _fill(folder, source, settings)
    prepared = _load(folder, model)
    for split in SPLITS:
        windows = prepared.windows(split)
        if not len(windows):
            raise DataError(
                f"{corpus}: split '{split}' has {len(prepared.tokens[split])} tokens, shorter than "
                f"one sequence ({windows.shape[1]}); valid: more text or a smaller seq_length"
            )
    return prepared


def _fill(folder: Path, corpus: Corpus, settings: TokenizerSettings) -> None:
    """Write a cache entry so that it appears whole or not at all, whoever else writes it too."""
    documents = corpus.documents()
    encoder = TextEncoder(settings, documents["train"])
    files, draft = _content(encoder, documents), draft_of(folder)
    with writing(folder, sum(map(len, files.values())), "set CONA_CACHE_DIR"):
        try:
            draft.mkdir(parents=True)
            for name, content in files.items():
                write_synced(draft / name, content)
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
        finally:
            discard(draft)


def _content(encoder: TextEncoder, documents: Mapping[str, list[str]]) -> dict[str, bytes]:
    """Return the files of a cache entry, by name."""
    arrays: dict[str, NDArray[Any]] = {s: encoder.encode(documents[s]) for s in SPLITS}
    if (token_bytes := encoder.token_bytes()) is not None:
        arrays["token_bytes"] = token_bytes
    texts = {
        "tokenizer.json": encoder.to_json(),
        "vocabulary.json": json.dumps(asdict(encoder.vocabulary)),
    }
    files = {f"{name}.npy": _npy(array) for name, array in arrays.items()}
    return files | {name: text.encode() for name, text in texts.items()}


def _npy(array: NDArray[Any]) -> bytes:
    """Return what numpy writes, which to a file would pass over a disk that is full."""
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def _load(folder: Path, model: ModelSpec) -> PreparedData:
    try:
        ids = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary(**{**ids, "special_ids": tuple(ids["special_ids"])})
        tokens = {split: _map(folder / f"{split}.npy") for split in SPLITS}
        token_bytes = np.load(folder / "token_bytes.npy") if model.is_causal else None
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the cache {folder} is damaged ({error}); delete that folder") from error
    return PreparedData(
        content_hash=folder.name,
        vocabulary=vocabulary,
        tokens=tokens,
        token_bytes=token_bytes,
        seq_length=model.seq_length,
        is_causal=model.is_causal,
    )


def _map(path: Path) -> Tokens:
    stream: Tokens = np.load(path, mmap_mode="r")
    return stream
