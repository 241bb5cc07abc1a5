"""The README's table of measurements is what the result files say."""

from __future__ import annotations

from pathlib import Path

from bench.figures import BEGIN, END, table


def test_the_readme_shows_the_stored_results() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    shown = readme.split(BEGIN)[1].split(END)[0].strip()
    # The corpus' token sum may have fallen since; `python bench/figures.py --write` renews it.
    assert shown == table()
