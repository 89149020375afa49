"""What is printed fits the terminal, loses nothing in a pipe, and progress stays on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cona import cli
from cona.cli import terminal
from cona.cli.terminal import LEAST, fold, say_json, steps, table, working

words = st.text("abcdefgh", min_size=1, max_size=LEAST)
sentences = st.lists(words, min_size=1, max_size=12).map(" ".join)
figures = st.one_of(st.just("-"), st.integers(0, 10**6).map(str))
rows = st.lists(st.tuples(figures, words, sentences, sentences), min_size=1, max_size=5)
HEAD = ("s", "name", "kind", "why")
PLANNERS = ("plan", "--planner", "all", "--model", "llama-3.2-1b", "--cluster", "a100x4-2node")


def at(width: int, head: tuple[str, ...], lines: list, drop: tuple[str, ...] = ()) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "columns", lambda: width)
        return table(head, lines, drop=drop).splitlines()


def letters(texts: list[str] | Iterator[str]) -> list[str]:
    return sorted(re.sub(r"\s", "", "".join(texts)))


# --- tables ---------------------------------------------------------------------------------------


def test_a_table_by_hand() -> None:
    lines = [("1", "one two three four five six", "x"), ("10", "seven", "y")]
    assert at(25, ("#", "words", "z"), lines) == [
        " #  words               z",
        " 1  one two three four  x",
        "    five six",
        "10  seven               y",
    ]
    assert at(100, ("#", "words", "z"), lines) == [
        " #  words                        z",
        " 1  one two three four five six  x",
        "10  seven                        y",
    ]


def test_columns_are_left_out_in_order_and_named() -> None:
    head, line = ("strategy", "s", "plans", "search"), ("dp4-tp1-pp1-mbs16-gbs64", "1.5", "9", "2")
    assert (
        at(44, head, [line], ("plans", "search"))[0]
        == "strategy                   s  plans  search"
    )
    short = at(36, head, [line], ("plans", "search"))
    assert short[0].split() == ["strategy", "s", "search"]
    assert " ".join(short[2:]) == (
        "Not shown for want of room: plans; a   wider terminal or --json has it."
    )
    assert at(30, head, [line], ("plans", "search"))[0].split() == ["strategy", "s"]


def test_names_are_cut_only_where_nothing_else_helps() -> None:
    line = ("dp4-tp1-pp1-mbs16-gbs64", "1.5")
    assert at(28, ("strategy", "s"), [line])[1] == "dp4-tp1-pp1-mbs16-gbs64  1.5"
    assert at(24, ("strategy", "s"), [line])[1:] == ["dp4-tp1-pp1-mbs16-   1.5", "gbs64"]


@given(lines=rows, width=st.integers(80, 200))
def test_a_table_fits_and_keeps_every_letter(lines: list[tuple[str, ...]], width: int) -> None:
    drawn = at(width, HEAD, lines)
    assert max(map(len, drawn)) <= width
    assert letters(iter(drawn)) == letters("".join((*HEAD, *(c for line in lines for c in line))))


@given(lines=rows, width=st.integers(30, 200))
def test_what_is_left_out_is_said(lines: list[tuple[str, ...]], width: int) -> None:
    drawn = at(width, HEAD, lines, drop=("why", "kind"))
    note = " ".join(" ".join(drawn).split()).partition("Not shown for want of room: ")[2]
    left_out = set(note.partition(";")[0].split(", ")) - {""}
    kept = [i for i, name in enumerate(HEAD) if name not in left_out]
    body = drawn if not note else drawn[: next(i for i, x in enumerate(drawn) if "Not" in x)]
    expected = "".join(row[i] for row in (HEAD, *lines) for i in kept)
    assert max(map(len, drawn)) <= width
    assert letters(iter(body)) == letters(expected)


@given(lines=rows)
def test_in_a_pipe_a_row_is_a_line(lines: list[tuple[str, ...]]) -> None:
    drawn = table(HEAD, lines, drop=HEAD)
    assert [line.split() for line in drawn.splitlines()] == [
        " ".join(row).split() for row in (HEAD, *lines)
    ]


# --- text -----------------------------------------------------------------------------------------


@given(sentences, st.integers(LEAST + 4, 100), st.integers(0, 2))
def test_sentences_are_folded_between_words(text: str, room: int, indent: int) -> None:
    line = " " * indent + text
    folded = fold(line, room)
    assert folded.split() == text.split()
    assert max(map(len, folded.splitlines())) <= max(room, 0)
    assert (folded == line) == (len(line) <= room)


def test_paths_are_never_cut() -> None:
    path = "results/quick/gpt3-1.3b-proxy/cona-paper/seed0/result.json"
    assert fold(f"in {path}", 20).splitlines() == ["in", f"  {path}"]


def test_json_has_no_nan_and_is_never_folded(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    say_json({"text": "word " * 20})
    assert json.loads(capsys.readouterr().out) == {"text": "word " * 20}
    with pytest.raises(ValueError, match="not JSON compliant"):
        say_json(float("nan"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("policies",),
        ("models",),
        ("tiers",),
        (*PLANNERS, "--gbs", "64"),
        ("plan", "--model", "gpt3-1.3b", "--cluster", "dgx-h100", "--gbs", "64"),
        ("plan", "--model", "gpt3-1.3b", "--cluster", "a100x4-2node", "--ladder"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(monkeypatch, arguments, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= width


# --- progress -------------------------------------------------------------------------------------


def test_progress_is_silent_in_a_pipe(capsys) -> None:
    assert list(steps([1, 2], "counting")) == [1, 2]
    assert list(steps(iter("ab"), "reading", 2)) == ["a", "b"]
    with working("thinking"):
        pass
    assert capsys.readouterr() == ("", "")


def test_progress_is_shown_on_a_terminal(monkeypatch, capsys) -> None:
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert list(steps([1, 2], "counting")) == [1, 2]
    with working("thinking"):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting" in err
    assert "thinking" in err
