"""The README's table of measurements is what the result files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.figures import BEGIN, END, table, written


def test_the_readme_shows_the_stored_results() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    shown = readme.split(BEGIN)[1].split(END)[0].strip()
    # The corpus' token sum may have fallen since; `python bench/figures.py --write` renews it.
    assert shown == table()


@pytest.mark.parametrize(("part", "shown"), [
    ({}, "not run"),
    ({"load: failed": "no memory"}, "not run"),
    ({"written, int8, dot": {"tokens": 14, "exact": True, "memory equal": True}}, "14 of 14"),
    ({"written, int8, dot": {"tokens": 14, "exact": True, "memory equal": False}}, "WRONG"),
    ({"written, int8, dot": {"tokens": 14, "exact": False, "memory equal": True}}, "WRONG"),
])  # fmt: skip
def test_a_part_that_failed_is_not_shown_as_right(part: dict[str, Any], shown: str) -> None:
    assert written(part) == shown
