"""WikiText-103 (Merity et al. 2016), the paper's text: from disk, or by the library `datasets`.

Read from either, the same words are the same text, byte for byte: the blank at both ends of a line
goes, and the marks that WikiText puts inside words and numbers (`one @-@ way`, `1 @,@ 000`,
`2 @.@ 5`) are undone. That is all that can be undone without guessing: the blanks around other
punctuation stay, and so does `<unk>` where the tokenised form has it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cona.errors import DataError

HUB_NAME, HUB_FORM = "Salesforce/wikitext", "wikitext-103-raw-v1"
"""What `datasets` is asked for: the raw form, whose words are all there; a tokenizer of ours splits
them, so it needs no `<unk>`."""

FILES = {"train": "wiki.train", "valid": "wiki.valid", "probe": "wiki.test"}
"""Each of our splits is one of the corpus's own; without ending."""
HUB_SPLITS = {"train": "train", "valid": "validation", "probe": "test"}
ENDINGS = (".raw", ".tokens")
"""Forms on disk; the raw one is preferred where both are there."""

_UNDONE = {" @-@ ": "-", " @,@ ": ",", " @.@ ": ".", "\r\n": "\n", " \n": "\n", "\n ": "\n"}
_TITLE = re.compile(r"\n\n(= (?!= )[^\n]*(?<! =) =)(?=\n\n)")
"""A heading of level 1, `= Title =`, between blank lines: a formula or a table row is not."""


def read_folder(name: str, folder: Path) -> dict[str, str]:
    """Read wiki.{train,valid,test}.raw, or the same of .tokens.

    Args:
        name: the corpus, as the user wrote it.
        folder: where the files are.

    Returns:
        The cleaned text of each split.

    Raises:
        DataError: a file is missing, unreadable or not UTF-8.
    """
    found = [e for e in ENDINGS if all((folder / f"{f}{e}").is_file() for f in FILES.values())]
    if not found:
        raise DataError(
            f"{name}: {folder} lacks wiki.train.tokens, wiki.valid.tokens or wiki.test.tokens (or "
            "the same of .raw); unpack a WikiText archive and name the folder that holds them"
        )
    return {split: _cleaned(_read(name, folder / f"{f}{found[0]}")) for split, f in FILES.items()}


def load_hub(name: str) -> dict[str, str]:
    """Load the raw WikiText-103 through `datasets`, from its cache or from the Hugging Face Hub.

    Args:
        name: the corpus, as the user wrote it.

    Returns:
        The cleaned text of each split.

    Raises:
        DataError: `datasets` is not installed, or it cannot load the text.
    """
    hub = _load_dataset(name)
    rows = {ours: hub[theirs][:]["text"] for ours, theirs in HUB_SPLITS.items()}
    # A row is a line, with its line end unless it is blank.
    return {s: _cleaned("\n".join(row.rstrip("\n") for row in r)) for s, r in rows.items()}


def articles(text: str) -> list[str]:
    """Cut a cleaned text at its headings of level 1; the articles joined are the text.

    Args:
        text: of one split; what is before the first heading is an article too.
    """
    # The two line ends in front shift what is found in the padded text by their own length.
    starts = [match.start() for match in _TITLE.finditer(f"\n\n{text}\n\n")]
    ends = [*starts[1:], len(text)] if starts else []
    first = text[: starts[0]] if starts else text
    return [a for a in (first, *(text[i:j] for i, j in zip(starts, ends, strict=True))) if a]


def _load_dataset(name: str) -> Any:
    from_disk = "or unpack a WikiText archive and use wikitext:<folder>"
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise DataError(
            f"{name} needs the library datasets: pip install 'cona-bench[wikitext]', {from_disk}"
        ) from error
    try:
        return load_dataset(HUB_NAME, HUB_FORM)
    except (OSError, RuntimeError, ValueError, DatasetsError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{name}: datasets cannot load {HUB_NAME} ({reason[:200]}); run `cona data --data "
            f"{name}` once where there is a network and bring its cache (HF_HOME) here, {from_disk}"
        ) from error


def _read(name: str, path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{name}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: {path} is not UTF-8 text (byte {error.start}); unpack it again"
        ) from error


def _cleaned(text: str) -> str:
    for written, meant in _UNDONE.items():
        text = text.replace(written, meant)
    return text.strip("\n ") + "\n"
