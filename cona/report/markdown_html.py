"""Our own Markdown as HTML: headings one level down, tables in boxes that scroll, and no markup.

Tags, links and images are shown as they are written: a page may hold names that users chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

LONG_CELL = 28
"""Cells of more characters than this wrap."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of tables as HTML."""

    title: str
    """Its first heading, as text."""
    notes: Markup
    """The list under the title: clock, caveats, what the columns are; may be empty."""
    body: Markup
    """All that follows, without the first heading."""


class _Renderer(RendererHTML):
    """Tables in boxes that scroll; long cells wrap."""

    def table_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        box = 'class="scroll" tabindex="0" role="region" aria-label="table"'
        return f"<div {box}><table>\n"

    def table_close(self, *_: Any) -> str:
        return "</table></div>\n"

    def td_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        is_long = len(tokens[idx + 1].content) > LONG_CELL
        return '<td class="long">' if is_long else "<td>"


def to_page(text: str, name: str) -> Page:
    """Return a page of Markdown as HTML.

    Args:
        text: Markdown with tables; its first heading is the title.
        name: the title of a page without a heading.
    """
    parser = _parser()
    tokens = parser.parse(text)
    title, tokens = _title(tokens, name)
    num_notes = _length_of_list(tokens)
    for token in tokens:
        if token.type.startswith("heading"):
            token.tag = f"h{min(int(token.tag[1:]) + 1, 6)}"
    notes, body = tokens[:num_notes], tokens[num_notes:]
    return Page(title=title, notes=_html(parser, notes), body=_html(parser, body))


def inline(text: str) -> Markup:
    """Return a sentence with code and emphasis as HTML, without a paragraph around it."""
    return Markup(_parser().renderInline(text))


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    return parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])


def _html(parser: MarkdownIt, tokens: Sequence[Token]) -> Markup:
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _title(tokens: list[Token], name: str) -> tuple[str, list[Token]]:
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        return tokens[1].content, tokens[3:]
    return name, tokens


def _length_of_list(tokens: Sequence[Token]) -> int:
    """Return how many tokens the list is that the page begins with; 0 without one."""
    if not tokens or tokens[0].type != "bullet_list_open":
        return 0
    ends = (i for i, t in enumerate(tokens) if t.type == "bullet_list_close" and t.level == 0)
    return next(ends) + 1
