"""base + circuit -> merged checkpoint.

The circuit's layers stand first, the base's follow with their numbers shifted; the vocabulary
grows by the machine's tokens behind the base's last row; the output head is written out on its
own. Base tensors are copied byte for byte. Everything is written to a hidden folder beside the
target and renamed at the end, so that an interrupted build leaves nothing that loads.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from qgpu.compiler.checkpoint import (
    CONFIG,
    INDEX,
    MANIFEST,
    SINGLE,
    Entry,
    Folder,
    Stored,
    clear_disk_error,
    copied,
    read_json,
    sha256,
    write_json,
    write_shards,
)
from qgpu.errors import CheckpointError, UsageError
from qgpu.machine import MachineSpec
from qgpu.tokens import Halt, offset_of, tokens

ROW_MULTIPLE = 128  # of the vocabulary's rows, as Qwen's own table
STANDIN_KEY = "standin"  # in the manifest of a stand-in
GPU_KEY = "qgpu"  # in config.json: what the machine in this checkpoint is and where
_DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}
# Written anew, or of no use beside a complete tokenizer.json.
_NOT_COPIED = {CONFIG, "generation_config.json", "README.md", MANIFEST, INDEX, "tokenizer.json",
               "vocab.json", "merges.txt"}  # fmt: skip
_COPIED_SUFFIXES = {".json", ".jinja", ".txt", ""}


@dataclass
class Circuit:
    """What the weight compiler gives: tensors by layer, token rows, and facts for the manifest.

    ``layers`` yields one dict per circuit layer, by the tensors' names within a decoder layer.
    ``memory`` says where the machine's memory lies in the recurrent state.
    """

    spec: MachineSpec
    n_layers: int
    layers: Callable[[], Iterator[dict[str, torch.Tensor]]]
    embedding: torch.Tensor
    head: torch.Tensor
    memory: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    spare_head: torch.Tensor | None = None  # [hidden], output row of the padding; zeros if None


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def entry(name: str, tensor: torch.Tensor) -> Entry:
    """A tensor in memory as something to write."""
    shape = tuple(tensor.shape)
    return Entry(name, _DTYPES[tensor.dtype], shape, lambda: [_raw(tensor)])


def _new_rows(base: Folder, circuit: Circuit) -> int:
    """Rows behind the base's: the machine's tokens, and spare rows up to an even table.

    A table with an odd number of rows would get other, slower matrix kernels than the base's, which
    add in another order: text logits would no longer be the base's bit for bit.
    """
    rows = base.embedding.shape[0]
    total = rows + len(tokens(circuit.spec))
    return total + -total % ROW_MULTIPLE - rows


def _widened(
    name: str, base: Stored, rows: torch.Tensor, n_new: int, spare: torch.Tensor | None = None
) -> Entry:
    """The base's rows, byte for byte, the machine's rows behind them, then spare ones."""
    n, width = base.shape
    last = rows.new_zeros(width) if spare is None else spare

    def read() -> Iterator[bytes]:
        yield from base.read()
        yield _raw(rows)
        yield _raw(last.repeat(n_new - len(rows), 1))

    return Entry(name, base.dtype, (n + n_new, width), read)


def merged_entries(base: Folder, circuit: Circuit) -> Iterator[Entry]:
    """Every tensor of the merged checkpoint, in the order in which it is written."""
    prefix, shift = base.prefix, circuit.n_layers
    n_new = _new_rows(base, circuit)
    yield _widened(f"{prefix}embed_tokens.weight", base.embedding, circuit.embedding, n_new)
    for index, layer in enumerate(circuit.layers()):
        for name, tensor in sorted(layer.items()):
            yield entry(f"{prefix}layers.{index}.{name}", tensor)
    layer_name = re.compile(re.escape(prefix) + r"layers\.(\d+)\.(.*)")
    rest = {k: v for k, v in base.tensors.items() if k != "lm_head.weight" and v != base.embedding}
    for name in sorted(rest, key=_by_layer):
        found = layer_name.fullmatch(name)
        new = f"{prefix}layers.{int(found[1]) + shift}.{found[2]}" if found else name
        yield copied(new, rest[name])
    yield _widened("lm_head.weight", base.head, circuit.head, n_new, circuit.spare_head)


def _by_layer(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def merged_config(base: Folder, circuit: Circuit) -> dict[str, Any]:
    """The base's config with the circuit in front; both levels agree."""
    config = copy.deepcopy(base.config)
    text = config.get("text_config", config)
    rows = base.embedding.shape[0]
    text["layer_types"] = ["linear_attention"] * circuit.n_layers + base.layer_types
    text["num_hidden_layers"] = len(text["layer_types"])
    text["vocab_size"] = rows + _new_rows(base, circuit)
    text["mamba_ssm_dtype"] = "float32"
    text.pop("full_attention_interval", None)
    for level in (config, text):
        level["tie_word_embeddings"] = False
        if "vocab_size" in level:
            level["vocab_size"] = text["vocab_size"]
    config[GPU_KEY] = text[GPU_KEY] = {
        "spec": asdict(circuit.spec),
        "circuit_layers": circuit.n_layers,
        "first_token": rows,
        "memory": circuit.memory,
    }
    return config


def merged_generation_config(base: Folder, circuit: Circuit) -> dict[str, Any]:
    """The base's, with the machine's tokens suppressed in ordinary text generation."""
    path = base.path / "generation_config.json"
    config: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    rows = base.embedding.shape[0]
    suppressed = range(rows, rows + _new_rows(base, circuit))
    config["suppress_tokens"] = [*config.get("suppress_tokens", []), *suppressed]
    return config


def check_base(base: Folder) -> None:
    """Refuse a base that cannot take a circuit."""
    if GPU_KEY in base.config:
        raise CheckpointError(f"{base.path} already holds a circuit; give the checkpoint before it")
    if "quantization_config" in base.config:
        raise CheckpointError(f"{base.path} is quantised; give the bf16 checkpoint that it is from")
    text = {k: v for k, v in base.tensors.items() if k.startswith((base.prefix, "lm_head."))}
    for name, stored in text.items():
        table = stored in (base.embedding, base.head)
        # Small tensors may be fp32, as in checkpoints that keep a decay or a norm so.
        if stored.dtype != "BF16" and (table or stored.dtype != "F32"):
            raise CheckpointError(
                f"{base.path} stores {name} in {stored.dtype}; the circuit is proven for bf16 only"
            )


def _check_rows(base: Folder, circuit: Circuit) -> None:
    wanted = (len(tokens(circuit.spec)), base.embedding.shape[1])
    for what, rows in (("embedding", circuit.embedding), ("head", circuit.head)):
        if tuple(rows.shape) != wanted:
            raise CheckpointError(
                f"the circuit's {what} rows have shape {tuple(rows.shape)}, not {wanted}"
            )


def _copy_extras(base: Folder, work: Path) -> None:
    """Licence, processor and tokenizer settings: small files that belong to the rest."""
    for file in sorted(base.path.iterdir()):
        if file.is_file() and file.name not in _NOT_COPIED and file.suffix in _COPIED_SUFFIXES:
            shutil.copyfile(file, work / file.name)


@contextmanager
def staged(target: Path, what: str) -> Iterator[Path]:
    """A hidden folder that becomes ``target`` when the block ends well, and vanishes when not.

    An old checkpoint is moved aside before and removed after: whenever the process ends, what bears
    the name is whole.
    """
    target = target.resolve()
    check_target(target)
    work, old = (target.with_name(f".{target.name}.{part}") for part in ("partial", "old"))
    try:
        _tidy(target, work, old)
        work.mkdir(parents=True)
        yield work
        if target.exists():
            target.rename(old)
        work.rename(target)
    except OSError as problem:
        raise clear_disk_error(problem, what) from None
    finally:
        _tidy(target, work, old)


def _tidy(target: Path, work: Path, old: Path) -> None:
    """Removes what is left of a write, now or by an earlier process; an old checkpoint whose
    successor did not get the name has it back."""
    if old.exists() and not target.exists():
        old.rename(target)
    for left in (work, old):
        shutil.rmtree(left, ignore_errors=True)


def _replaceable(target: Path) -> bool:
    """Whether a folder is ours to overwrite: empty, or with a manifest that we wrote."""
    if not target.is_dir():
        return False
    if not any(target.iterdir()):
        return True
    try:
        manifest = read_json(target / MANIFEST)
    except CheckpointError:
        return False
    return bool({GPU_KEY, STANDIN_KEY} & set(manifest))


def check_target(target: Path, source: Path | None = None) -> None:
    """Refuse to write over what is read, or over somebody else's folder."""
    if source is not None and source.resolve() == target.resolve():
        raise UsageError(f"{target} is what is read: name another folder to write")
    if target.exists() and not _replaceable(target):
        raise CheckpointError(f"{target} exists and is not a checkpoint of qgpu: choose another")


def merge(
    base: Folder,
    circuit: Circuit,
    target: Path,
    *,
    write_tokenizer: Callable[[Path, Path], None],
    card: Callable[[dict[str, Any]], str],
    progress: Callable[[int], None] = lambda n: None,
) -> dict[str, Any]:
    """Write the merged checkpoint; returns its manifest.

    ``write_tokenizer(source, target)`` extends the base's tokenizer.json; ``card(manifest)`` is
    the text of the model card. config.json comes last but for the manifest.
    """
    check_base(base)
    check_target(target, base.path)
    _check_rows(base, circuit)
    with staged(target, f"the checkpoint {target}") as work:
        hashes = write_shards(work, merged_entries(base, circuit), progress)
        _copy_extras(base, work)
        if (base.path / "tokenizer.json").exists():
            write_tokenizer(base.path / "tokenizer.json", work / "tokenizer.json")
        write_json(work / "generation_config.json", merged_generation_config(base, circuit))
        config = merged_config(base, circuit)
        manifest: dict[str, Any] = {
            "format": 1,
            GPU_KEY: config[GPU_KEY],
            "halt_token": base.embedding.shape[0] + offset_of(circuit.spec, Halt()),
            "base": {"model_type": base.config["model_type"], "layers": len(base.layer_types),
                     "embedding_rows": base.embedding.shape[0],
                     "files": _base_hashes(base)},
            "facts": circuit.facts,
        }  # fmt: skip
        (work / "README.md").write_text(card(manifest), encoding="utf-8")
        write_json(work / CONFIG, config)
        small = sorted(f for f in work.iterdir() if f.name not in hashes)
        manifest["files"] = dict(sorted({**hashes, **{f.name: sha256(f) for f in small}}.items()))
        write_json(work / MANIFEST, manifest)
    return manifest


def _base_hashes(base: Folder) -> dict[str, str]:
    """The hashes of the base's config and index: what the base was, without reading it twice."""
    names = (CONFIG, INDEX if (base.path / INDEX).exists() else SINGLE)
    return {name: sha256(base.path / name) for name in names}
