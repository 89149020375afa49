"""The report in a headless browser, offline and from disk, on a desk's and a phone's screen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Tab, browser_or_skip, tab
from snakemake_runs import ROOT

from cona import config
from cona.report.page import write_report
from cona.specs import TierSpec

sys.path.insert(0, str(ROOT / "tests" / "unit"))
from fake_runs import ALL, write_tier

MODELS = ("bert-large-proxy", "gpt3-1.3b-proxy")
WIDTHS = {"desk": 1280, "phone": 390}
WIDE = "| " + " | ".join(f"column {i}" for i in range(40)) + " |\n" + "|---" * 40 + "|\n"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="1600" height="800"><rect width="9" height="9"/>'
    "</svg>"
)
UNBROKEN = "x" * 400
"""A word that fits no phone."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("page") / "results <b>&amp;#?"
    write_tier(results, models=MODELS, plans=ALL, seeds=(0, 1))
    folder = results / "quick"
    for name in ("claims", "ttp", "planners", "new"):
        (folder / "tables").mkdir(exist_ok=True)
        text = f"# About {name}\n\n- a note {UNBROKEN}\n\n## Part\n\n{WIDE}"
        (folder / "tables" / f"{name}.md").write_text(text + ("| 1.234 " * 40 + "|\n") * 60)
    (folder / "figures").mkdir()
    for name in ("perplexity_over_clock", "new"):
        (folder / "figures" / f"{name}.svg").write_text(SVG)
        (folder / "figures" / f"{name}.txt").write_text(f"Title of {name}.\nCaption {UNBROKEN}.\n")
    return write_report(results, config.load(TierSpec, "quick"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(browser_or_skip("the report"), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(params=WIDTHS)
def opened(browser: Tab, report: Path, request: pytest.FixtureRequest) -> Tab:
    """Return the report at one width, freshly loaded."""
    browser.open(report.as_uri(), WIDTHS[request.param], is_phone=request.param == "phone")
    return browser


def open_all(page: Tab) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")


def test_it_asks_for_nothing_but_itself_and_complains_of_nothing(opened: Tab, report: Path) -> None:
    open_all(opened)
    requests = opened.requests()
    assert requests[0] == report.as_uri()
    assert [url[:80] for url in requests[1:] if not url.startswith("data:")] == []
    assert opened.complaints() == []


def test_the_page_does_not_scroll_sideways_but_tables_do(opened: Tab) -> None:
    for is_all in (False, True):
        if is_all:
            open_all(opened)
        assert opened.evaluate("document.documentElement.scrollWidth") <= opened.width
    overflows = opened.evaluate(
        "[...document.querySelectorAll('.scroll')].some((box) => box.scrollWidth > box.clientWidth)"
    )
    assert overflows
    outside = opened.evaluate(
        "[...document.querySelectorAll('main *, nav *, header *')].filter((e) =>"
        f" !e.closest('.scroll') && e.getBoundingClientRect().right > {opened.width + 1})"
        ".map((e) => e.outerHTML.slice(0, 200))"
    )
    assert outside == []


def test_all_images_are_there(opened: Tab) -> None:
    widths = opened.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert widths == [1600, 1600]


def test_headings_are_seen_in_order(opened: Tab) -> None:
    heights = opened.evaluate(
        "[...document.querySelectorAll('h1, h2')].map((h) => [h.tagName, h.offsetHeight])"
    )
    assert [name for name, _ in heights][:2] == ["H1", "H2"]
    assert len(heights) > 9
    assert all(height > 10 for _, height in heights)


def runs_shown(page: Tab, section: str) -> list[Any]:
    runs = f"#{section} [data-model]"
    return list(
        page.evaluate(
            f"[...document.querySelectorAll('{runs}')].filter((r) => r.offsetParent !== null)"
            ".map((r) => [r.dataset.model, r.dataset.policy, r.dataset.seed])"
        )
    )


def choose(page: Tab, section: str, **chosen: str) -> None:
    for name, value in chosen.items():
        page.evaluate(
            f"(() => {{ const s = document.querySelector('#{section} select[name={name}]');"
            f" s.value = '{value}';"
            " s.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )


def test_runs_are_filtered_by_model_policy_and_seed(opened: Tab) -> None:
    assert runs_shown(opened, "decisions") == [[m, "cona", s] for m in MODELS for s in "01"]
    assert {seed for *_, seed in runs_shown(opened, "timelines")} == {"0"}
    choose(opened, "timelines", policy="rampup", seed="1", model=MODELS[0])
    assert runs_shown(opened, "timelines") == [[MODELS[0], "rampup", "1"]]
    headings = opened.evaluate(
        "[...document.querySelectorAll('#timelines h3')].map((h) => h.offsetParent !== null)"
    )
    assert headings == [True, False]
    choose(opened, "timelines", policy="", seed="", model="")
    assert len(runs_shown(opened, "timelines")) == len(MODELS) * len(ALL) * 2
    assert len(runs_shown(opened, "decisions")) == len(MODELS) * 2  # the other filter stands


def test_a_decision_and_its_reason_are_seen_without_scrolling(opened: Tab) -> None:
    ends = opened.evaluate(
        "(() => { const box = document.querySelector('#decisions details[open] .scroll');"
        " return [box.getBoundingClientRect().right,"
        " ...[...box.querySelectorAll('th')].slice(0, 3).map((cell) =>"
        " [cell.textContent, cell.getBoundingClientRect().right])]; })()"
    )
    edge, *columns = ends
    assert [name for name, _ in columns] == ["samples", "action", "reason"]
    assert all(right <= edge <= opened.width for _, right in columns)


def test_every_link_leads_to_a_place_on_the_page(opened: Tab) -> None:
    lost = opened.evaluate(
        "[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))"
        ".filter((href) => !document.getElementById(href.slice(1)))"
    )
    assert lost == []
    shown = opened.evaluate("getComputedStyle(document.querySelector('.top')).display")
    assert (shown == "none") == (opened.width == WIDTHS["desk"])  # there the contents stay in view


def test_text_can_be_read_in_both_colour_schemes(opened: Tab) -> None:
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.call("Emulation.setEmulatedMedia", features=features)
        pairs = opened.evaluate(
            "[['body', 'body'], ['.notes', 'body'], ['a', 'body'], ['output', '.filter'],"
            " ['.label', '.label'], ['thead th', 'thead th']].map(([ink, paper]) =>"
            " [getComputedStyle(document.querySelector(ink)).color,"
            " getComputedStyle(document.querySelector(paper)).backgroundColor])"
        )
        assert all(contrast(*map(rgb, pair)) >= 4.5 for pair in pairs), (scheme, pairs)
    opened.call("Emulation.setEmulatedMedia", features=[])


def rgb(text: str) -> list[float]:
    return [int(n) / 255 for n in text.partition("(")[2].rstrip(")").split(",")[:3]]


def contrast(ink: list[float], paper: list[float]) -> float:
    """Return the ratio of luminances, as the WCAG define it."""
    bright, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(color: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
