"""Corpora: which text is read, and which part of it is trained on, validated on and probed.

Source: method.md 7 (a fixed evaluation set) and 9 (a probe set disjoint from it).
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from cona.data import wikitext
from cona.errors import DataError

SPLITS = ("train", "valid", "probe")

CORPORA = "stdlib, wikitext-103, wikitext:<folder>, text:<path>"
"""What a corpus may be called, for messages."""

HELD_OUT_SLOTS = {10: "valid", 21: "probe"}
"""Of every NUM_SLOTS stretches of a `text:` corpus, the ones that are not trained on."""
NUM_SLOTS = 32
"""Stretches per turn: 30/1/1 of 32 is about 94/3/3 %."""
MAX_PIECE_CHARS = 16_384
"""Largest stretch of a `text:` corpus that is dealt to one split at a time, ASSUMED."""

# Of the standard library only; a user's folder is read whole.
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}
)
# Written when Python was built or installed: they hold this machine's paths and compiler flags.
_INSTALLATION_FILES = ("_sysconfigdata", "sitecustomize.py", "usercustomize.py")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text files in a fixed order, and the rule that deals them to the splits."""

    name: str
    """As the user wrote it, e.g. `stdlib` or `text:<path>`."""
    files: tuple[tuple[str, bytes], ...]
    """Path relative to the corpus, with forward slashes, and content of each file."""
    split_rule: Literal["path", "position", "articles"]
    """path: a file's path decides for the whole file; position: see `split_by_position`; articles:
    a file is a split, by its name, and is cut into articles."""

    @property
    def digest(self) -> str:
        """SHA-256 of the text and the split rule; a `text:` corpus may be moved and renamed."""
        total = hashlib.sha256(f"{self.split_rule}-1".encode())
        for name, content in self.files:
            deciding_name = "" if self.split_rule == "position" else name
            total.update(f"\0{deciding_name}\0{len(content)}\0".encode())
            total.update(content)
        return total.hexdigest()

    def documents(self) -> dict[str, list[str]]:
        """Return the documents of each split, without blank ones.

        Raises:
            DataError: a file is not UTF-8.
        """
        texts = [self._decode(name, content) for name, content in self.files]
        labelled = self._labelled([name for name, _ in self.files], texts)
        return {
            s: [text for split, text in labelled if split == s and text.strip()] for s in SPLITS
        }

    def _labelled(self, names: Sequence[str], texts: Sequence[str]) -> list[tuple[str, str]]:
        """Return pairs of split and document, in order."""
        if self.split_rule == "position":
            return split_by_position(texts)
        if self.split_rule == "articles":
            pairs = zip(names, map(wikitext.articles, texts), strict=True)
            return [(name, article) for name, articles in pairs for article in articles]
        return [(split_of(name), text) for name, text in zip(names, texts, strict=True)]

    def _decode(self, name: str, content: bytes) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.name}: file '{name}' is not UTF-8 text (byte {error.start}); "
                "convert it or leave it out"
            ) from error


def read_corpus(corpus: str) -> Corpus:
    """Read all files of a corpus.

    Args:
        corpus: `stdlib`, the running Python's standard library as source text (no tests, no
            installed packages); `wikitext-103`, through the library `datasets`;
            `wikitext:<folder>`, where its files lie; or `text:<path>`, a UTF-8 file or a folder of
            them, walked in sorted order without hidden names.

    Raises:
        DataError: the name has another form, nothing is there, or it cannot be read.
    """
    if not is_corpus(corpus):
        raise DataError(f"unknown corpus '{corpus}': valid: {CORPORA}")
    if corpus == "stdlib":
        return _stdlib()
    if corpus == "wikitext-103":
        return _wikitext(corpus, wikitext.load_hub(corpus))
    check_exists(corpus)
    path = _path(corpus)
    if corpus.startswith("wikitext:"):
        return _wikitext(corpus, wikitext.read_folder(corpus, path))
    return _text(corpus, path)


def _path(corpus: str) -> Path:
    written = corpus.partition(":")[2]
    return Path(written).expanduser() if written.startswith("~/") else Path(written)


def check_exists(corpus: str) -> None:
    """Refuse a corpus whose file or folder is not there; reads nothing.

    Raises:
        DataError: it is not.
    """
    if ":" in corpus and not _path(corpus).exists():
        raise DataError(
            f"{corpus}: there is no such file or folder; valid: an existing one, or stdlib"
        )


def is_corpus(corpus: str) -> bool:
    """Return whether a corpus may be called so; reads nothing."""
    scheme, _, path = corpus.partition(":")
    return corpus in ("stdlib", "wikitext-103") or (scheme in ("text", "wikitext") and bool(path))


def split_of(path: str) -> str:
    """Return the split of a file, from a fixed hash of its relative path: 94/3/3 % of files."""
    share = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") / 2**64
    return "train" if share < 0.94 else "valid" if share < 0.97 else "probe"


def split_by_position(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Deal texts to the splits by where they lie: works for one file as well as for thousands.

    The texts, laid end to end, are divided into equal slots, a multiple of 32. Each text is cut at
    line ends into pieces no longer than a slot; a piece goes where the slot of its first character
    goes: in each turn of 32 slots one to valid, one to probe, the rest to train. Neighbouring
    pieces of one text and one split form one document.

    Args:
        texts: decoded files, in order.

    Returns:
        Pairs of split and document, in order; joined they are the texts.
    """
    total = sum(map(len, texts))
    num_slots = NUM_SLOTS * max(1, total // (NUM_SLOTS * MAX_PIECE_CHARS))
    max_chars = max(1, min(MAX_PIECE_CHARS, total // NUM_SLOTS))
    documents, position = [], 0
    for text in texts:
        labelled = []
        for piece in cut_at_lines(text, max_chars):
            slot = position * num_slots // total % NUM_SLOTS
            labelled.append((HELD_OUT_SLOTS.get(slot, "train"), piece))
            position += len(piece)
        for split, pieces in groupby(labelled, key=lambda pair: pair[0]):
            documents.append((split, "".join(piece for _, piece in pieces)))
    return documents


def cut_at_lines(text: str, max_chars: int) -> Iterator[str]:
    """Cut a text into pieces of at most ``max_chars`` characters, at line ends where there are any.

    Args:
        text: any text; the pieces joined give it back.
        max_chars: largest piece, characters, at least 1.
    """
    start = 0
    while start < len(text):
        end = start + max_chars
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [p for p in _walk(root, _SKIPPED_FOLDERS) if _is_library_source(p, root)]
    if not paths:
        raise DataError(f"stdlib: no source files in {root}; use the corpus text:<path>")
    return Corpus(name="stdlib", files=_read("stdlib", paths, root), split_rule="path")


def _is_library_source(path: Path, root: Path) -> bool:
    generated = path.name.startswith(_INSTALLATION_FILES)
    # The build folder, e.g. config-3.11-x86_64-linux-gnu, is generated too.
    generated |= path.relative_to(root).parts[0].startswith("config-")
    return path.suffix == ".py" and not generated


def _text(name: str, path: Path) -> Corpus:
    if path.is_file():
        files = _read(name, [path], path.parent)
    else:
        files = _read(name, list(_walk(path)), path)
    if not any(content.strip() for _, content in files):
        raise DataError(f"{name}: there is no text in it; valid: a file or folder with UTF-8 text")
    return Corpus(name=name, files=files, split_rule="position")


def _wikitext(name: str, texts: Mapping[str, str]) -> Corpus:
    files = tuple((split, text.encode()) for split, text in texts.items())
    return Corpus(name=name, files=files, split_rule="articles")


def _walk(root: Path, skipped: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files under a folder in sorted order, without hidden ones."""
    for folder, subfolders, names in os.walk(root):
        # In place: os.walk then neither enters the others nor visits these in another order.
        subfolders[:] = sorted(f for f in subfolders if f not in skipped and f[0] != ".")
        yield from (Path(folder, name) for name in sorted(names) if name[0] != ".")


def _read(name: str, paths: Sequence[Path], root: Path) -> tuple[tuple[str, bytes], ...]:
    try:
        return tuple((p.relative_to(root).as_posix(), p.read_bytes()) for p in paths if p.is_file())
    except OSError as error:
        raise DataError(f"{name}: cannot read {error.filename}: {error.strerror}") from error
