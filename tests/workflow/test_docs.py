"""The documentation's site builds without a warning, fetches nothing, and its pages read well."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake_runs import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ROOT_PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
FETCHED = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc="(?:https?:)?//|@import|url\(["']?http"""
)
STYLESHEET = re.compile(
    r'<link\b[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(?:https?:)?//'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert built.returncode == 0, built.stdout
    return folder


def test_every_page_is_built(site: Path) -> None:
    """MkDocs itself warns of pages that have no place in the navigation, and of broken links."""
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert {path.relative_to(DOCS).with_suffix("") for path in PAGES} <= built


def test_a_reader_offline_misses_nothing(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text()
        assert not FETCHED.search(page), path.name
        assert not STYLESHEET.search(page), path.name


@pytest.mark.parametrize("page", sorted((DOCS / "api").glob("*.md")), ids=lambda page: page.stem)
def test_docstrings_are_there(site: Path, page: Path) -> None:
    html = (site / "api" / f"{page.stem}.html").read_text()
    modules = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    assert modules or page.stem == "index"
    for module in modules:
        assert f'id="{module}"' in html
        assert f'id="{module}.' in html, "nothing public in it has a docstring"


def stuck_lines(text: str) -> list[int]:
    """Return the lines that would be drawn into the paragraph above: lists and indented blocks."""
    stuck, in_paragraph, in_fence = [], False, False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_fence, in_paragraph = not in_fence, False
        elif not in_fence:
            starts_item = bool(re.match(r" *(?:[-*]|\d+\.) ", line))
            if in_paragraph and (starts_item or line.startswith("    ")):
                stuck.append(number)
            plain = bool(line.strip()) and not re.match(r"[#|>]|\s", line)
            in_paragraph = plain and not starts_item
    return stuck


def test_stuck_lines_are_found() -> None:
    stuck = (
        "a sentence\n- an item\n\n    code\n\nmore:\n    code\n\n- item\n  rest\n- item\n1. one\n"
    )
    assert stuck_lines(stuck) == [2, 7]
    assert stuck_lines("```\ntext\n- no item\n```\n# head\n- item\n\n| a |\n    code\n") == []


@pytest.mark.parametrize("page", PAGES + ROOT_PAGES, ids=lambda page: page.name)
def test_lists_and_blocks_stand_alone(page: Path) -> None:
    assert stuck_lines(page.read_text()) == [], "put a blank line before these"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_formula_turns_into_emphasis(page: Path) -> None:
    """Of `dp*tp*pp` a reader would see `dptppp`; prose has `dp·tp·pp`, code has stars."""
    prose = re.sub(r"^```.*?^```$|^    .*?$|`[^`]*`|\\\*", "", page.read_text(), flags=re.M | re.S)
    assert re.findall(r"\w\*\w[^\n]*", prose) == []


def test_every_answer_says_where_more_is_written() -> None:
    _, *answers = re.split(r"^## ", (DOCS / "faq.md").read_text(), flags=re.MULTILINE)
    assert len(answers) >= 12
    for answer in answers:
        question, _, text = answer.partition("\n")
        assert question.endswith("?")
        assert re.search(r"\]\([\w./#-]+\.md", text), question
