from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cona.data.corpora import (
    MAX_PIECE_CHARS,
    SPLITS,
    cut_at_lines,
    read_corpus,
    split_by_position,
    split_of,
)
from cona.errors import DataError

LINES = st.text(alphabet="ab\né", max_size=400)


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


# --- cutting and splitting ----------------------------------------------------------------------


def test_cut_prefers_line_ends_and_falls_back_to_the_limit() -> None:
    assert list(cut_at_lines("ab\ncd\nefghij\n", 4)) == ["ab\n", "cd\n", "efgh", "ij\n"]
    assert list(cut_at_lines("abcd", 4)) == ["abcd"]
    assert list(cut_at_lines("", 4)) == []


@given(LINES, st.integers(1, 50))
def test_cut_pieces_join_to_the_text_within_the_limit(text: str, limit: int) -> None:
    pieces = list(cut_at_lines(text, limit))
    assert "".join(pieces) == text
    assert all(1 <= len(piece) <= limit for piece in pieces)


def test_position_split_of_one_file_by_hand() -> None:
    # 64 characters: 32 slots of 2; slot 10 holds characters 20 and 21, slot 21 holds 42 and 43.
    text = "".join(chr(0x4E00 + i) for i in range(64))
    assert split_by_position([text]) == [
        ("train", text[:20]),
        ("valid", text[20:22]),
        ("train", text[22:42]),
        ("probe", text[42:44]),
        ("train", text[44:]),
    ]


@given(st.lists(LINES, max_size=12))
def test_position_split_keeps_every_character_and_fills_every_split(texts: list[str]) -> None:
    documents = split_by_position(texts)
    total = sum(map(len, texts))
    assert "".join(document for _, document in documents) == "".join(texts)
    if total >= 32:
        assert {split for split, _ in documents} == set(SPLITS)


@given(st.integers(40, 400), st.integers(1, 4000))
def test_position_split_gives_small_files_whole_to_one_split(count: int, size: int) -> None:
    texts = ["x" * size] * count
    documents = split_by_position(texts)
    assert len(documents) == count or size > min(MAX_PIECE_CHARS, count * size // 32)


def test_position_split_shares_of_a_large_file() -> None:
    documents = split_by_position(["some words of text\n" * 100_000])
    sizes = {s: sum(len(d) for split, d in documents if split == s) for s in SPLITS}
    total = sum(sizes.values())
    # Three turns of whole pieces: the share is exact to about one piece in six.
    assert sizes["valid"] / total == pytest.approx(1 / 32, rel=0.2)
    assert sizes["probe"] / total == pytest.approx(1 / 32, rel=0.2)


def test_path_split_never_changes() -> None:
    # Recorded runs rest on this assignment: a change must be deliberate (and bump the digest).
    found = {p: split_of(p) for p in ("argparse.py", "asyncio/base_events.py", "shutil.py")}
    assert found == {
        "argparse.py": "train",
        "asyncio/base_events.py": "valid",
        "shutil.py": "probe",
    }


def test_path_split_shares() -> None:
    splits = [split_of(f"package/module_{i}.py") for i in range(20_000)]
    assert splits.count("train") / 20_000 == pytest.approx(0.94, abs=0.01)
    assert splits.count("valid") / 20_000 == pytest.approx(0.03, abs=0.005)


# --- stdlib -------------------------------------------------------------------------------------


def test_stdlib_leaves_out_tests_packages_and_installation_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ["abc.py", "json/__init__.py", "json/decoder.py", "unittest/case.py", "tester.py"]
    dropped = [
        "test/test_abc.py",
        "lib2to3/tests/pytree.py",
        "idlelib/idle_test/test_run.py",
        "ctypes/test/__init__.py",
        "site-packages/numpy/core.py",
        "dist-packages/apt.py",
        "json/__pycache__/decoder.py",
        "_sysconfigdata__linux_x86_64-linux-gnu.py",
        "config-3.11-x86_64-linux-gnu/python-config.py",
        "sitecustomize.py",
        "LICENSE.txt",
        "lib-dynload/readme.py",
    ]
    write(tmp_path, {name: f"# {name}\n" for name in [*dropped, *kept]})
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert [name for name, _ in read_corpus("stdlib").files] == [
        "abc.py",
        "tester.py",
        "json/__init__.py",
        "json/decoder.py",
        "unittest/case.py",
    ]


def test_stdlib_without_sources_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(DataError, match=r"no source files .* use the corpus text:<path>"):
        read_corpus("stdlib")


def test_running_stdlib_fills_all_splits_without_a_file_in_two() -> None:
    corpus = read_corpus("stdlib")
    names = [name for name, _ in corpus.files]
    assert len(names) == len(set(names)) > 300
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    documents = corpus.documents()
    assert tuple(documents) == SPLITS
    num_bytes = {s: sum(len(d.encode()) for d in documents[s]) for s in SPLITS}
    assert num_bytes["train"] > 5_000_000
    assert min(num_bytes["valid"], num_bytes["probe"]) > 100_000
    assert not set(documents["train"]) & set(documents["valid"] + documents["probe"])
    # Nothing of this machine: two machines with the same Python read the same text.
    assert not any(sysconfig.get_path("stdlib") in d for ds in documents.values() for d in ds)


# --- text:<path> --------------------------------------------------------------------------------


def test_text_folder_is_walked_in_sorted_order_without_hidden_names(tmp_path: Path) -> None:
    write(tmp_path, {"b.txt": "b", "a/z.txt": "z", "a/c": "c", "test/t.txt": "t", "A.txt": "A"})
    write(tmp_path, {".git/HEAD": b"\xff\xfe", "a/.DS_Store": b"\xff", ".hidden": b"\xff"})
    files = read_corpus(f"text:{tmp_path}").files
    assert files == (
        ("A.txt", b"A"),
        ("b.txt", b"b"),
        ("a/c", b"c"),
        ("a/z.txt", b"z"),
        ("test/t.txt", b"t"),
    )


def test_text_file(tmp_path: Path) -> None:
    write(tmp_path, {"one.txt": "x" * 320, "other.txt": "y"})
    documents = read_corpus(f"text:{tmp_path / 'one.txt'}").documents()
    assert documents == {
        "train": ["x" * 100, "x" * 100, "x" * 100],
        "valid": ["x" * 10],
        **{"probe": ["x" * 10]},
    }


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"one.txt": "text"})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_corpus("text:~/one.txt").files == (("one.txt", b"text"),)


def test_digest_depends_on_text_and_file_limits_but_not_on_names(tmp_path: Path) -> None:
    write(tmp_path, {"1/a": "xy", "1/b": "z", "2/c": "xy", "2/d": "z", "3/a": "x", "3/b": "yz"})
    write(tmp_path, {"4/a": "xy", "4/b": "Z"})
    digests = [read_corpus(f"text:{tmp_path / str(i)}").digest for i in (1, 2, 3, 4)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_stdlib_digest_depends_on_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for name in ("one", "two"):
        root = tmp_path / name
        write(root, {f"{name}.py": "pass\n"})
        monkeypatch.setattr(sysconfig, "get_path", lambda _, root=root: str(root))
        digests.append(read_corpus("stdlib").digest)
    assert digests[0] != digests[1]


@pytest.mark.parametrize("corpus", ["wikitext", "text:", "text", "stdlib:x", ""])
def test_unknown_corpus_lists_the_valid_ones(corpus: str) -> None:
    with pytest.raises(
        DataError, match="unknown corpus .*: valid: stdlib, wikitext-103, wikitext:<folder>, text"
    ):
        read_corpus(corpus)


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"text:.*/nowhere: there is no such file or folder"):
        read_corpus(f"text:{tmp_path}/nowhere")


@pytest.mark.parametrize("files", [{}, {"a.txt": ""}, {"a.txt": " \n", "b.txt": "\t"}])
def test_empty_folder(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    write(tmp_path, files)
    with pytest.raises(DataError, match="there is no text in it"):
        read_corpus(f"text:{tmp_path}")


def test_empty_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": ""})
    with pytest.raises(DataError, match="there is no text in it"):
        read_corpus(f"text:{tmp_path}/a.txt")


def test_undecodable_file_names_file_and_byte(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "fine", "sub/b.bin": b"abc\xff"})
    corpus = read_corpus(f"text:{tmp_path}")
    with pytest.raises(DataError, match=r"file 'sub/b.bin' is not UTF-8 text \(byte 3\)"):
        corpus.documents()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "secret"})
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: Permission denied"):
        read_corpus(f"text:{tmp_path}")
