"""What the parts of bench/text_check.py share: their options, their record, and launches."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
WRITTEN = ("dot", "saxpy", "reverse")  # launches that are written token by token
TICK = 0.05  # seconds between two looks at the memory


@dataclass(frozen=True)
class Options:
    """What is asked of every part. ``layers``: of the stand-in, if not its own; ``rows``: of the
    table, through the dense layers; ``probes``: whose traces go through prefill; None for all.
    ``vllm``: a Python that has vLLM."""

    work: Path
    like: str = "2b"
    layers: int | None = None
    rows: int | None = None
    positions: int = 512
    decoded: int = 192
    probes: tuple[str, ...] | None = None
    written: tuple[str, ...] = WRITTEN
    vllm: Path | None = None

    @property
    def base(self) -> Path:
        return self.work / "base"

    @property
    def merged(self) -> Path:
        return self.work / "merged"


def anonymous() -> int:
    """Bytes of this process that are its own; pages of mapped files are not among them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


class Memory:
    """The peak of this process: all that was resident, mapped files too, and what was its own."""

    def __init__(self) -> None:
        self.own = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.own = max(self.own, anonymous())
            time.sleep(TICK)

    def as_json(self) -> Facts:
        resident, started = (
            round(resource.getrusage(who).ru_maxrss / 2**20, 2)
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        own = {"peak GiB": resident, "peak GiB without mapped files": round(self.own / 2**30, 2)}
        return own | ({"peak GiB of a process it started": started} if started > resident else {})


class Record:
    """What one part found; on disk after every step, with the reason where a step failed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.facts: Facts = {}
        self.memory = Memory()

    def save(self) -> None:
        self.out.write_text(json.dumps(self.facts | {"memory": self.memory.as_json()}))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start, used = time.perf_counter(), time.process_time()
        try:
            yield
        except Exception as problem:  # the other steps are still worth running
            self.facts[f"{name}: failed"] = f"{type(problem).__name__}: {problem}"[:600]
        self.facts[f"{name}: seconds"] = round(time.perf_counter() - start, 1)
        self.facts[f"{name}: CPU seconds"] = round(time.process_time() - used, 1)
        self.save()
        print(f"  {name}: {json.dumps(self.facts.get(name))}"[:400], flush=True)


def launches(record: Record, model: Any, how: str, options: Options) -> None:
    """Probes' traces through prefill, and some written token by token."""
    from qgpu.host.launch import Interpreter
    from qgpu.host.probes import probe_jobs

    model.graph = False
    jobs = [(name, job, Interpreter(model.spec).execute(job, lambda token: None))
            for name, job in probe_jobs(model.spec, options.probes)]  # fmt: skip
    with record.step(f"traces, {how}"):
        faults: Facts = {}
        for name, job, wanted in jobs:
            wrong, memory = model.verify_trace(job.prompt(), wanted.tokens)
            if wrong is not None or memory != wanted.memory:
                faults[name] = {"first wrong token": wrong, "of": len(wanted.tokens),
                                "memory equal": memory == wanted.memory}  # fmt: skip
        record.facts[f"traces, {how}"] = {
            "launches": len(jobs),
            "tokens": sum(len(w.tokens) for *_, w in jobs),
            "faults": faults,
        }
    for name, job, wanted in jobs:
        if name in options.written:
            with record.step(f"written, {how}, {name}"):
                start = time.perf_counter()
                found = model.execute(job, lambda token: None)
                record.facts[f"written, {how}, {name}"] = {
                    "tokens": len(wanted.tokens), "exact": found.tokens == wanted.tokens,
                    "memory equal": found.memory == wanted.memory,
                    "tokens/s": round(len(found.tokens) / (time.perf_counter() - start), 1),
                }  # fmt: skip


def prove(record: Record, model: Any, options: Options) -> None:
    from qgpu.host.dense_proof import prove_dense
    from qgpu.host.drift import some_launch

    with record.step("silence, dense"):
        start = time.perf_counter()
        proof = prove_dense(model, some_launch(model), rows=options.rows)
        record.facts["silence, dense"] = vars(proof) | {
            "holds": proof.holds, "rows/s": round(proof.rows / (time.perf_counter() - start)),
        }  # fmt: skip


def drift(record: Record, options: Options, positions: int, decoded: int) -> None:
    from qgpu.host.drift import measure

    with record.step("drift"):
        found = measure(options.base, options.merged, max_positions=positions,
                        decode_positions=decoded)  # fmt: skip
        record.facts["drift"] = {mode: part.as_dict() for mode, part in found.items()}
