"""qgpu quantise: Qwen's own layers smaller, the circuit bit for bit, a copy that others load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import qgpu
from qgpu.compiler.checkpoint import CONFIG, MANIFEST, Folder, read_json
from qgpu.compiler.merge import GPU_KEY
from qgpu.errors import CheckpointError, UsageError
from qgpu.host import quantise as module
from qgpu.host.launch import Job
from qgpu.host.model import Model, load_hf
from qgpu.host.quantise import quantise
from qgpu.host.verify import verify
from qgpu.isa import Instruction, MachineBlock, Op, Target
from tests.host.small import N_CIRCUIT, flip, merge_idle, multimodal, narrow_base

pytest.importorskip("torchao", reason="qgpu quantise needs torchao")
pytestmark = pytest.mark.dense

# --- narrow checkpoints: bytes, configs, refusals -------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("narrow")
    merge_idle(narrow_base(path / "base"), path / "model")
    return path / "model"


@pytest.fixture
def without_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The narrow circuit is idle: no launch runs in it."""
    monkeypatch.setattr(module, "replay", lambda model: None)


def content(folder: Folder, name: str) -> bytes:
    return b"".join(folder.tensors[name].read())


@pytest.mark.usefixtures("without_launch")
@pytest.mark.parametrize(("form", "dtype"), [("int8", "I8"), ("fp8", "F8_E4M3")])
def test_only_the_base_s_matrices_become_smaller(
    narrow: Path, tmp_path: Path, form: str, dtype: str
) -> None:
    manifest = quantise(narrow, tmp_path / "copy", form)
    before, after = Folder.open(narrow), Folder.open(tmp_path / "copy")
    smaller = {name for name, stored in after.tensors.items()
               if stored.dtype == dtype and not name.endswith("_zero_point")}  # fmt: skip
    own = {
        f"{name.removesuffix('.weight')}._weight_qdata"
        for name, stored in before.tensors.items()
        if name.startswith("model.layers.") and int(name.split(".")[2]) >= N_CIRCUIT
        and len(stored.shape) == 2
    }  # fmt: skip
    assert smaller == own
    kept = [name for name in before.tensors if name in after.tensors]
    assert {f"{name.removesuffix('.weight')}._weight_qdata" for name in before.tensors
            if name not in kept} == own  # fmt: skip
    assert all(content(before, name) == content(after, name) for name in kept)
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(kept)
    assert manifest["quantised"]["circuit_tensors_identical"] == N_CIRCUIT * 14
    assert manifest["quantised"]["tensors_quantised"] == len(own)


@pytest.mark.usefixtures("without_launch")
def test_the_config_says_how_others_load_it(narrow: Path, tmp_path: Path) -> None:
    quantise(narrow, tmp_path / "copy")
    config, before = read_json(tmp_path / "copy" / CONFIG), read_json(narrow / CONFIG)
    assert config[GPU_KEY] == before[GPU_KEY]
    assert config["layer_types"] == before["layer_types"]
    assert config["mamba_ssm_dtype"] == "float32"
    said = config["quantization_config"]
    assert said["quant_method"] == "torchao"
    assert said["quant_type"]["default"]["_type"] == "Int8WeightOnlyConfig"
    kept = ["lm_head", *(f"model.layers.{n}" for n in range(N_CIRCUIT))]
    assert said["modules_to_not_convert"] == kept
    assert "int8 (torchao" in (tmp_path / "copy" / "README.md").read_text()
    for name in ("generation_config.json", "tokenizer.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (narrow / name).read_bytes()
    modes = {file.stat().st_mode for file in (tmp_path / "copy").iterdir()}
    assert len(modes) == 1


@pytest.mark.usefixtures("without_launch")
def test_a_second_copy_is_byte_identical(narrow: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        quantise(narrow, tmp_path / name)
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "two").iterdir())
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.usefixtures("without_launch")
def test_the_copy_of_a_multimodal_checkpoint_is_its_text_model(tmp_path: Path) -> None:
    base = multimodal(narrow_base(tmp_path / "base"), tmp_path / "both")
    merge_idle(base, tmp_path / "model")
    manifest = quantise(tmp_path / "model", tmp_path / "copy")
    assert manifest["quantised"]["circuit_tensors_identical"] == N_CIRCUIT * 14
    copy = Folder.open(tmp_path / "copy")
    assert copy.config["model_type"] == "qwen3_5_text"
    assert copy.config[GPU_KEY] == read_json(tmp_path / "model" / CONFIG)[GPU_KEY]
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        logits = load_hf(copy.path, device="cpu")(ids).logits
        whole = load_hf(tmp_path / "model", device="cpu")(ids).logits
    assert 0 < (logits - whole).abs().max() < 0.1


def test_a_copy_that_no_longer_launches_is_not_written(
    narrow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [MachineBlock((Instruction(Op.TID, dst=1),), Target(exit=True))]
    monkeypatch.setattr(module, "blocks_job", lambda spec: Job(spec, blocks, [], 1, 100))
    monkeypatch.setattr(Model, "verify_trace", lambda self, prompt, trace: (0, []))
    with pytest.raises(CheckpointError, match=r"quantised, no longer runs a launch \(token 0\)"):
        quantise(narrow, tmp_path / "copy")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_launch")
def test_a_circuit_that_was_changed_is_not_written(
    narrow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(source: Path, work: Path, form: str) -> None:
        stored = Folder.open(work).tensors["model.layers.1.mlp.up_proj.weight"]
        flip(stored.file, stored.start + 8)

    monkeypatch.setattr(module, "_copy_extras", change)
    with pytest.raises(CheckpointError, match=r"1\.mlp\.up_proj\.weight of the circuit was"):
        quantise(narrow, tmp_path / "copy")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_launch")
def test_what_cannot_be_quantised(
    narrow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantise(narrow, tmp_path / "copy")
    with pytest.raises(CheckpointError, match="is quantised already"):
        quantise(tmp_path / "copy", tmp_path / "again")
    with pytest.raises(UsageError, match="is what is read: name another folder"):
        quantise(narrow, narrow)
    with pytest.raises(CheckpointError, match="has no GPU in it"):
        quantise(narrow.parent / "base", tmp_path / "again")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs torchao: pip install torchao"):
        quantise(narrow, tmp_path / "again")
    assert [file.name for file in tmp_path.iterdir()] == ["copy"]


# --- the small machine: launches, text, reload ----------------------------------------------------


@pytest.fixture(scope="module")
def copied(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantised") / "int8"
    quantise(small_model, path)
    return path


@pytest.fixture(scope="module")
def model(copied: Path) -> Iterator[Model]:
    yield Model.load(copied, device="cpu")


DOT = """
__global__ void dot(const int *a, const int *b, int *out) {
    atomicAdd(out, a[threadIdx.x] * b[threadIdx.x]);
}
"""


def test_a_launch_is_exact_token_by_token(model: Model) -> None:
    kernel = qgpu.compile(DOT).kernel()
    args = [np.array([1, -2, 3], np.int32), np.array([4, 5, 6], np.int32), np.zeros(1, np.int32)]
    result = qgpu.launch(kernel, 1, 3, args, on=model, check=True)
    assert (result.args[2], result.check) == ([12], "ok")


def test_it_still_proves_silent_and_its_files_are_those_of_the_manifest(copied: Path) -> None:
    facts = verify(copied)
    assert facts["silent rows of text"] == 2048
    assert read_json(copied / MANIFEST)["quantised"]["by"] == "torchao int8 weight-only"


def test_text_is_near_the_whole_model_s_and_has_no_machine_token(
    model: Model, small_model: Path
) -> None:
    ids = torch.arange(100, 160)[None]
    with torch.inference_mode():
        logits = model.hf(ids).logits[..., : model.first_token].float()
        whole = load_hf(small_model, device="cpu")(ids).logits[..., : model.first_token].float()
    change = (logits - whole).norm() / whole.norm()
    assert 0 < change < 0.1
    written = model.hf.generate(ids, do_sample=False, max_new_tokens=8, eos_token_id=-1)
    assert (written < model.first_token).all()


OTHERS = """
import sys, torch, transformers
hf = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
assert "qgpu" not in sys.modules
kinds = {type(p).__name__ for p in hf.parameters()}
out = hf.generate(torch.arange(5, 25)[None], do_sample=False, max_new_tokens=4, eos_token_id=-1)
print(sorted(kinds), out[0, 20:].tolist())
"""


def test_a_process_without_qgpu_loads_the_copy(copied: Path, model: Model) -> None:
    run = subprocess.run([sys.executable, "-c", OTHERS, str(copied)], capture_output=True,
                         text=True, timeout=120, check=True, cwd=copied)  # fmt: skip
    ours = model.hf.generate(
        torch.arange(5, 25)[None], do_sample=False, max_new_tokens=4, eos_token_id=-1
    )
    assert run.stdout.strip().endswith(str(ours[0, 20:].tolist()))
    assert "Int8" in run.stdout
