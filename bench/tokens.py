"""Tokens that a launch takes, for every case of the corpus; the sum may only fall.

python bench/tokens.py            compare with bench/tokens.json; status 1 if the sum rose
python bench/tokens.py --update   write bench/tokens.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.cases import Case, all_cases
from tests.levels import in_blocks, prompt_of

STORED = Path(__file__).with_suffix(".json")
COLUMNS = ("blocks", "registers", "fed", "written", "execs")


def measure(case: Case) -> list[int]:
    """The case's machine blocks, registers, tokens fed and written, and forward passes of Exec."""
    _, lowered, run = in_blocks(case)
    fed = len(prompt_of(case, lowered))
    return [len(lowered.blocks), lowered.n_registers, fed, len(run.tokens), run.n_execs]


def total(rows: dict[str, list[int]]) -> int:
    return sum(row[COLUMNS.index("written")] for row in rows.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the file")
    given = parser.parse_args()
    rows = {case.name: measure(case) for case in all_cases()}
    if given.update:
        lines = ",\n".join(f"  {json.dumps(name)}: {row}" for name, row in rows.items())
        STORED.write_text(f'{{"columns": {json.dumps(COLUMNS)}, "cases": {{\n{lines}\n}}}}\n')
    stored = json.loads(STORED.read_text())["cases"]
    print(f"{'case':44}" + "".join(f"{name:>10}" for name in COLUMNS) + "    before")
    for name, row in rows.items():
        before = stored.get(name, [0] * len(COLUMNS))[COLUMNS.index("written")]
        change = "" if row[COLUMNS.index("written")] == before else f"{before:>10}"
        print(f"{name:44}" + "".join(f"{value:>10}" for value in row) + change)
    common = {name: row for name, row in rows.items() if name in stored}
    now, before = total(common), total({name: stored[name] for name in common})
    print(f"{len(rows)} cases, {total(rows)} tokens written; the {len(common)} stored ones took "
          f"{before}, now {now}")  # fmt: skip
    return int(now > before)


if __name__ == "__main__":
    sys.exit(main())
