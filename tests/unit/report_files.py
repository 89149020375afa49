"""Pages and figures of a tier for the report's tests, without anything computed."""

from __future__ import annotations

from pathlib import Path

from cona import config
from cona.specs import TierSpec

MODEL = "gpt3-1.3b-proxy"
PNG = bytes.fromhex("89504e470d0a1a0a")


def tier(name: str = "quick") -> TierSpec:
    return config.load(TierSpec, name)


def write_pages(results: Path, *names: str) -> None:
    folder = results / "quick" / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        text = f"# About {name}, tier quick\n\n- Clock: `modelled`.\n\n## {MODEL}\n\n"
        (folder / f"{name}.md").write_text(text + "| a | b |\n|---|---|\n| 1 | **2** |\n")


def write_figure(results: Path, name: str, suffix: str = ".png") -> None:
    folder = results / "quick" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}{suffix}").write_bytes(PNG)
    (folder / f"{name}.txt").write_text(f"Title of {name}.\nCaption of `{name}`.\n")
