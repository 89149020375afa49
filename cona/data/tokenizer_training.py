"""How a tokenizer is trained: on which part of the text, and so that training is repeatable.

The `tokenizers` library is imported here, on first use. Source: method.md 6 and 7.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from cona.data.corpora import cut_at_lines

END_OF_TEXT = "<|endoftext|>"
WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

TRAINING_BYTES_PER_ENTRY = 4096
"""Training reads at most this much text for each vocabulary entry, ASSUMED: 2 MiB for 512."""
ALPHABET_SHARE = 6
"""WordPiece keeps the most frequent characters, at most a 6th of the vocabulary, ASSUMED."""
MAX_ALPHABET = 1000
"""WordPiece keeps at most this many characters; others become [UNK]."""
SAMPLE_CHARS = 2**14
"""Largest stretch of text that training takes or leaves."""


def _library() -> Any:
    """Import `tokenizers`, on one core: a run may not disturb its neighbours."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    import tokenizers

    return tokenizers


def training_sample(documents: Sequence[str], max_bytes: int) -> Iterator[str]:
    """Yield stretches of text, spread over the documents, of about ``max_bytes`` in all."""
    chunks = [c for document in documents for c in cut_at_lines(document, SAMPLE_CHARS)]
    sizes = [len(chunk.encode()) for chunk in chunks]
    share = min(1.0, max_bytes / max(1, sum(sizes)))
    seen = taken = 0
    for chunk, size in zip(chunks, sizes, strict=True):
        if taken <= share * seen:
            taken += size
            yield chunk
        seen += size


def train_bpe(vocab_size: int, sample: Sequence[str]) -> Any:
    """Return a byte-level BPE tokenizer of at most ``vocab_size`` ids; the end token is id 0."""
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def train_wordpiece(vocab_size: int, sample: Sequence[str]) -> Any:
    """Return a WordPiece tokenizer of at most ``vocab_size`` ids; BERT's specials come first."""
    library = _library()
    trained = _wordpiece(library, {"[UNK]": 0})
    alphabet = _alphabet(
        trained.normalizer, sample, min(MAX_ALPHABET, vocab_size // ALPHABET_SHARE)
    )
    # The library numbers continuations (##a) in the order of a randomly seeded hash map, and equal
    # pair counts are decided by those numbers. Listing them beforehand makes training repeatable.
    continuations = [f"##{char}" for char in alphabet if not _stands_alone(char)]
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*WORDPIECE_SPECIALS, *continuations],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained.train_from_iterator(sample, trainer)
    # A new tokenizer on the same vocabulary: it knows no added tokens, so text that spells a
    # special token is ordinary text.
    return _wordpiece(library, trained.get_vocab())


def _wordpiece(library: Any, vocabulary: dict[str, int]) -> Any:
    tokenizer = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    return tokenizer


def _alphabet(normalizer: Any, sample: Sequence[str], max_chars: int) -> list[str]:
    """Return the most frequent characters of the normalised sample, sorted; ties by code point."""
    counts: Counter[str] = Counter()
    for chunk in sample:
        counts.update(normalizer.normalize_str(chunk))
    visible = [char for char in counts if not char.isspace()]
    visible.sort(key=lambda char: (-counts[char], char))
    return sorted(visible[:max_chars])


def _stands_alone(char: str) -> bool:
    """Return whether BERT makes a character a word of its own: it has no continuation then."""
    return unicodedata.category(char)[0] == "P" or (char.isascii() and not char.isalnum())
