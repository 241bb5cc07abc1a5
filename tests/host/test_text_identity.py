"""Qwen stays Qwen, bit for bit: text through a merged checkpoint against text through its base.

Every comparison is of bits. One checkpoint of the small machine, with the widths of Qwen3.5-2B and
two layers of base, is built for the whole module.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from qgpu.compiler.checkpoint import MANIFEST, Folder, read_json
from qgpu.host.build import build
from qgpu.host.drift import new_cache, run_text
from qgpu.host.launch import Job
from qgpu.host.margin import CHOSEN
from qgpu.host.model import Model, cache_argument, load_hf
from qgpu.host.probes import blocks_job
from qgpu.host.standin import write_standin
from qgpu.interp.machine import Machine
from qgpu.machine import SMALL
from qgpu.tokens import Token

pytestmark = pytest.mark.dense
LENGTHS = (1, 63, 64, 65, 128, 129)
N_TEXT = 2048
COMMIT = "c0de" * 10


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("identity")
    base = path / "snapshots" / COMMIT  # as the hub's cache has it
    write_standin("tiny", base, seed=3)
    build(base, path / "model", SMALL, pad=False, base_name="some/base")
    return base, path / "model"


@pytest.fixture(scope="module")
def base(folders: tuple[Path, Path]) -> Any:
    return load_hf(folders[0], device="cpu")


@pytest.fixture(scope="module")
def model(folders: tuple[Path, Path]) -> Model:
    return Model.load(folders[1], device="cpu")


def test_the_manifest_says_of_what_base_and_with_what_margins(folders: tuple[Path, Path]) -> None:
    facts = read_json(folders[1] / MANIFEST)["facts"]
    assert facts["hub"] == {"model": "some/base", "commit": COMMIT}
    assert [margin["launch"] for margin in facts["margins"]] == list(CHOSEN)
    assert facts["least_margin"] == min(margin["lead"] for margin in facts["margins"]) > 1
    assert facts["head"]["kl_on_unseen_text"]["max"] < 1e-6


def text_of(n: int, seed: int = 0) -> list[int]:
    g = torch.Generator().manual_seed(seed)
    return [int(i) for i in torch.randint(0, N_TEXT, (n,), generator=g)]


def feed(hf: Any, ids: Sequence[int], cache: Any, step: int) -> torch.Tensor:
    """Logits of the original vocabulary for ``ids``, fed ``step`` at a time."""
    return run_text(hf, ids, cache, step, lambda done: None).logits[:, :N_TEXT]


def states(model: Model, cache: Any) -> list[torch.Tensor]:
    """The recurrent states of the circuit's layers."""
    out = []
    for layer in cache.layers[: model.circuit_layers]:
        state = layer.recurrent_states
        out.append((state[0] if isinstance(state, dict) else state).clone())
    return out


def launch_of() -> tuple[Job, list[Token]]:
    job = blocks_job(SMALL)
    machine = Machine(SMALL, job.blocks)
    return job, list(machine.iter_tokens(job.memory, job.n_threads, max_tokens=job.max_tokens))


@pytest.mark.parametrize("step", [1, 64, 200])
def test_text_has_the_bits_of_the_base(base: Any, model: Model, step: int) -> None:
    ids = text_of(5 if step == 1 else 130)
    wanted = feed(base, ids, new_cache(base), step)
    assert torch.equal(feed(model.hf, ids, model.new_cache(), step), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_many_tokens_on_a_filled_cache_have_the_bits_of_the_base(
    base: Any, model: Model, length: int
) -> None:
    start, ids = text_of(5, 1), text_of(length, 2)
    found = []
    for hf in (base, model.hf):
        cache = new_cache(hf)
        found.append(torch.cat([feed(hf, start, cache, 5), feed(hf, ids, cache, length)]))
    assert torch.equal(*found)


def test_text_leaves_every_state_of_the_circuit_at_zero(model: Model) -> None:
    cache = model.new_cache()
    feed(model.hf, text_of(70), cache, 70)
    feed(model.hf, text_of(2), cache, 1)
    assert not any(state.any() for state in states(model, cache))


def launched(model: Model, cache: Any) -> None:
    """A whole launch, prompt and trace, fed at once."""
    job, trace = launch_of()
    with torch.inference_mode():
        said = model.forward(model.ids([*job.prompt(), *trace]), cache, keep=len(trace) + 1)
    assert [int(i) for i in said.argmax(-1)][:-1] == model.ids(trace)


def test_text_around_a_launch_in_a_forked_cache_never_sees_it(base: Any, model: Model) -> None:
    wanted_cache, cache = new_cache(base), model.new_cache()
    for part in range(2):
        ids = text_of(9, part)
        assert torch.equal(feed(model.hf, ids, cache, 9), feed(base, ids, wanted_cache, 9))
        if not part:
            launched(model, deepcopy(cache))
        one = text_of(2, 10 + part)
        assert torch.equal(feed(model.hf, one, cache, 1), feed(base, one, wanted_cache, 1))


def test_text_after_a_launch_in_one_cache_does_not_touch_the_machine(model: Model) -> None:
    cache = model.new_cache()
    launched(model, cache)
    memory, before = model.memory(cache), states(model, cache)
    assert any(state.any() for state in before)
    feed(model.hf, text_of(66), cache, 66)
    feed(model.hf, text_of(2), cache, 1)
    for ours, theirs in zip(states(model, cache), before, strict=True):
        assert torch.equal(ours, theirs)
    assert model.memory(cache) == memory


@pytest.fixture(scope="module")
def whole(model: Model) -> list[torch.Tensor]:
    """The circuit's states behind a launch that was fed at once."""
    cache = model.new_cache()
    launched(model, cache)
    return states(model, cache)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 63, 64, 65])
def test_a_launch_fed_in_parts_is_the_same_launch(
    model: Model, whole: list[torch.Tensor], length: int
) -> None:
    """The circuit's state behind prompt and trace does not depend on where the feeding is cut."""
    job, trace = launch_of()
    fed, cache = model.ids([*job.prompt(), *trace]), model.new_cache()
    assert len(fed) > 1 + length
    with torch.inference_mode():
        for start, stop in itertools.pairwise((0, 1, 1 + length, len(fed))):
            model.forward(fed[start:stop], cache)
    for ours, theirs in zip(states(model, cache), whole, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("pads", [(1,), (7,), (0, 3, 4, 7)])
def test_left_padding_has_the_bits_of_the_base(
    base: Any, model: Model, pads: tuple[int, ...]
) -> None:
    rows = [[5] * n + text_of(20 - n, n) for n in pads]
    mask = torch.tensor([[0] * n + [1] * (20 - n) for n in pads])
    found = []
    for hf in (base, model.hf):
        with torch.inference_mode():
            out = hf(
                input_ids=torch.tensor(rows), attention_mask=mask, use_cache=True,
                **{cache_argument(hf): new_cache(hf)},
            )  # fmt: skip
        found.append(out.logits[:, -1, :N_TEXT])
    assert torch.equal(*found)


def test_accelerate_spreads_the_layers_over_devices(
    base: Any, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """CPU and disk: the second device that there is without a GPU."""
    pytest.importorskip("accelerate")
    n = len(Folder.open(folders[1]).layer_types)
    where = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu",
             "lm_head": "cpu"}  # fmt: skip
    where |= {f"model.layers.{i}": "cpu" if i < n - 3 else "disk" for i in range(n)}
    hf = load_hf(folders[1], device_map=where, offload_folder=str(tmp_path / "off"))
    assert set(hf.hf_device_map.values()) == {"cpu", "disk"}
    ids = text_of(17, 5)
    wanted = feed(base, ids, new_cache(base), 17)
    assert torch.equal(feed(hf, ids, new_cache(hf), 17), wanted)
