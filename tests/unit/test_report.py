"""The report: what it shows, in which order, and that no name becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_runs import ALL, CONA, FIXED, Simulation, write_run, write_tier
from hypothesis import given
from hypothesis import strategies as st
from report_files import MODEL, tier, write_figure, write_pages

from cona.cli import main
from cona.report import page
from cona.report.markdown_html import inline, to_page
from cona.report.page import write_report
from cona.report.shown import FIGURES, FIRST, LAST, SECOND
from cona.result import sealed

VOID = {"meta", "link", "img", "br", "hr", "input", "rect"}
HOSTILE = "<script>alert(1)</script>\"'&`"


class Reader(HTMLParser):
    """Collects tags, their attributes and headings, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def ids(self, tag: str) -> list[str | None]:
        return [attrs.get("id") for name, attrs in self.tags if name == tag and attrs.get("id")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_tier(folder, models=(MODEL, "bert-large-proxy"), plans=ALL, seeds=(0, 1))
    write_pages(folder, *(p.name for p in (*LAST, *SECOND, *FIRST)), "news")
    for name in (*reversed(FIGURES), "a_new_one"):
        write_figure(folder, name)
    return folder


@pytest.fixture(scope="module")
def text(results: Path) -> str:
    path = write_report(results, tier())
    assert path == results / "quick" / "report.html"
    return path.read_text()


# --- the whole page -------------------------------------------------------------------------------


def test_sections_are_in_order_and_the_contents_lead_to_them(text: str) -> None:
    read = Reader(text)
    second = [place.name for place in SECOND]
    last = [place.name for place in LAST]
    runs = ["decisions", "timelines", "costs"]
    end = ["caveats", "provenance"]
    assert read.ids("section") == ["claims", "figures", *second, "news", *runs, *last, *end]
    links = [attrs["href"] for tag, attrs in read.tags if tag == "a"]
    assert read.ids("figure") == [f"figure-{name}" for name in (*FIGURES, "a_new_one")]
    places = [*read.ids("section"), *read.ids("figure"), *read.ids("nav")]
    assert links == [f"#{name}" for name in places]


def test_headings_never_skip_a_level_and_every_section_has_one(text: str) -> None:
    levels = Reader(text).headings
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert levels.count(2) == len(Reader(text).ids("section"))


def test_images_have_words_and_nothing_is_fetched(text: str) -> None:
    tags = Reader(text).tags
    images = [attrs for tag, attrs in tags if tag == "img"]
    assert len(images) == len(FIGURES) + 1
    assert all(image["alt"] and str(image["src"]).startswith("data:image/png") for image in images)
    for tag, attrs in tags:
        for name in ("src", "href", "action", "srcset"):
            assert (attrs.get(name) or "#").startswith(("#", "data:")), (tag, attrs)
    assert "url(" not in text and "@import" not in text


def test_only_our_script_may_run(text: str) -> None:
    tags = Reader(text).tags
    assert [tag for tag, _ in tags].count("script") == 1
    (policy,) = [a["content"] for t, a in tags if t == "meta" and a.get("http-equiv")]
    script = text.partition("<script>")[2].partition("</script>")[0]
    assert f"script-src '{page._hash(script)}'" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert not [a for _, a in tags if any(name.startswith("on") for name in a)]


def test_everything_modelled_is_labelled(text: str) -> None:
    for section in text.split("<section ")[1:]:
        name = section.split('"')[1]
        if name in ("caveats", "provenance"):
            continue
        assert '<span class="label">modelled seconds</span>' in section, name
        has_proxies = name not in ("costs", "planners")
        assert ('<span class="label">proxy models</span>' in section) == has_proxies, name


def test_the_same_files_give_the_same_bytes(results: Path, text: str) -> None:
    assert write_report(results, tier()).read_text() == text


def test_provenance_names_command_commit_versions_and_run_keys(text: str) -> None:
    for words in ("make reproduce TIER=quick", "abc123", "da7a", "300 s (modelled seconds)"):
        assert words in text
    keys = re.findall(r"<td>([0-9a-f]{16})</td>", text)
    assert len(set(keys)) == 2 * 2 * len(ALL)


def test_without_tables_and_figures_it_says_how_to_write_them(tmp_path: Path) -> None:
    write_tier(tmp_path, models=(MODEL,), plans=(FIXED[0],))
    found = write_report(tmp_path, tier()).read_text()
    assert "cona tables --tier quick" in found
    assert Reader(found).ids("section")[0] == "decisions"
    assert "No run decided anything" in found


def test_the_command_writes_the_file_and_answers_without_runs(tmp_path: Path) -> None:
    write_tier(tmp_path, models=(MODEL,), plans=(CONA, FIXED[0]))
    done = CliRunner().invoke(main, ["report", "--tier", "quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output == f"{tmp_path / 'quick' / 'report.html'}\n"
    refused = CliRunner().invoke(main, ["report", "--tier", "smoke", "--out", str(tmp_path)])
    assert refused.exit_code == 1
    assert "no finished run" in refused.output


# --- names ----------------------------------------------------------------------------------------


def test_no_name_becomes_markup(tmp_path: Path) -> None:
    lines = Simulation(plan=CONA, budget_s=40.0).run()
    for line in lines:
        if line["kind"] == "decision":
            line |= {"reason": HOSTILE, "details": {HOSTILE: HOSTILE, "gns": HOSTILE}}
    write_run(tmp_path, lines, policy="cona", model=MODEL, belief=HOSTILE, run_key=HOSTILE)
    (path,) = (tmp_path / "quick").glob("*/*/seed*")
    result = json.loads((path / "result.json").read_text()) | {"model": HOSTILE, "policy": HOSTILE}
    (path / "result.json").write_text(json.dumps(sealed(result)))
    write_pages(tmp_path, "claims", "x<b>y")
    claims = tmp_path / "quick" / "tables" / "claims.md"
    claims.write_text(f"# {HOSTILE}\n\n| {HOSTILE} |\n|---|\n| ![x](http://evil/x.png) |\n")
    write_figure(tmp_path, "new")
    (tmp_path / "quick" / "figures" / "new.txt").write_text(f"{HOSTILE}.\n{HOSTILE}")
    text = write_report(tmp_path, tier()).read_text()
    tags = [tag for tag, _ in Reader(text).tags]
    assert tags.count("script") == 1
    assert "alert(1)" in text and "<script>alert" not in text
    assert tags.count("img") == 1


@given(st.one_of(st.text(), st.text(alphabet="<>&\"'`[]()!#|*_-=:/; \nahrefscip")))
def test_no_markdown_becomes_a_tag_that_acts(content: str) -> None:
    found = to_page(f"# {content}\n\n{content}\n\n| {content} |\n|---|\n| {content} |\n", "name")
    html = f"{found.notes}{found.body}{inline(content)}"
    tags = set(re.findall(r"<([a-zA-Z]\w*)", html))
    plain = {"p", "em", "strong", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br"}
    table = {"table", "thead", "tbody", "tr", "th", "td", "div"}
    assert tags <= plain | table | {"h2", "h3", "h4", "h5", "h6"}
    assert not re.search(r"<[^>]*\b(?:on\w+|src|href)=", html)


def test_a_page_is_title_notes_and_body() -> None:
    long = "x" * 50
    found = to_page(f"# T <1>\n\n- note `a`\n\n## S\n\n| a |\n|---|\n| {long} |\n| b |\n", "name")
    assert found.title == "T <1>"
    assert "<li>note <code>a</code></li>" in found.notes
    assert found.body.startswith("<h3>S</h3>")
    assert f'<td class="long">{long}</td>' in found.body and "<td>b</td>" in found.body
    assert '<div class="scroll"' in found.body
    assert to_page("text", "name").title == "name"
