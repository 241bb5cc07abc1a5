"""Checkpoint folders: reading tensors' bytes, checking that a folder is whole, writing shards.

Tensors are moved as bytes: nothing here interprets a weight, so what is copied is copied exactly.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from qgpu.errors import CheckpointError, NoModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
MANIFEST = "manifest.json"
SHARD_BYTES = 2 << 30
CHUNK = 16 << 20
DTYPE_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I8": 1,
               "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}  # fmt: skip
# What torchao stores beside the integers of a quantised weight.
_QUANTISED = re.compile(r"\._weight_(scale|zero_point)$")
MULTIMODAL = "language_model."
MODEL_TYPES = {"qwen3_5_text": "", "qwen3_5": MULTIMODAL}


@dataclass(frozen=True)
class Stored:
    """Where a tensor's bytes lie."""

    file: Path
    start: int
    stop: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return self.stop - self.start

    def rows(self, n_rows: int | None = None) -> Bfloat16Rows:
        """The matrix, or its first rows, without reading it whole."""
        return Bfloat16Rows(self, n_rows)

    def array(self) -> np.ndarray[Any, Any]:
        """A bf16 or fp32 tensor in fp32."""
        raw = b"".join(self.read())
        if self.dtype == "F32":
            return np.frombuffer(raw, np.float32).reshape(self.shape)
        return _from_bfloat16(np.frombuffer(raw, np.uint16)).reshape(self.shape)

    def read(self) -> Iterator[bytes]:
        """The bytes, in chunks."""
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            left = self.n_bytes
            while left:
                chunk = stream.read(min(CHUNK, left))
                if not chunk:
                    raise CheckpointError(f"{self.file} is truncated")
                left -= len(chunk)
                yield chunk


def _from_bfloat16(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide: np.ndarray[Any, Any] = raw.astype(np.uint32) << 16
    return wide.view(np.float32)


class Bfloat16Rows:
    """A stored bf16 matrix whose slices of rows are fp32 arrays; the file is only mapped."""

    def __init__(self, stored: Stored, n_rows: int | None = None) -> None:
        raw = np.memmap(stored.file, np.uint16, "r", stored.start, stored.shape)
        self._raw = raw if n_rows is None else raw[:n_rows]
        self.shape: tuple[int, ...] = self._raw.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        return _from_bfloat16(self._raw[rows])


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"{path} cannot be read: {problem}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return data


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file; refuses a truncated or malformed one."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= size - 8:
                raise CheckpointError(f"{file} is truncated or not a safetensors file")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        stored = {
            name: Stored(file, 8 + length + row["data_offsets"][0],
                         8 + length + row["data_offsets"][1], row["dtype"], tuple(row["shape"]))
            for name, row in header.items()
        }  # fmt: skip
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CheckpointError(f"{file} is not a safetensors file: {problem}") from None
    for name, where in stored.items():
        if where.stop > size:
            raise CheckpointError(
                f"{file} is truncated: {name} ends at byte {where.stop} of {size}"
            )
        if where.dtype not in DTYPE_BYTES:
            raise CheckpointError(f"{file}: {name} is stored in {where.dtype}, which is not known")
        if where.n_bytes != prod(where.shape) * DTYPE_BYTES[where.dtype]:
            raise CheckpointError(f"{file}: {name} has the wrong number of bytes")
    return stored


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor -> shard, a file of the same folder."""
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise CheckpointError(f"{path} has no weight_map of names")
    for file in found.values():
        if Path(file).name != file:
            raise CheckpointError(f"{path} names {file}, which is no file of this folder")
    return found


def read_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a folder; the index and the shards must say the same."""
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise CheckpointError(f"{folder} has no {SINGLE} and no {INDEX}")
        return read_header(folder / SINGLE)
    wanted = _weight_map(folder / INDEX)
    stored: dict[str, Stored] = {}
    for shard in sorted(set(wanted.values())):
        for name, where in read_header(folder / shard).items():
            if wanted.get(name) != shard:
                raise CheckpointError(f"{folder / shard} holds {name}, which the index does not")
            stored[name] = where
    lost = sorted(set(wanted) - set(stored))
    if lost:
        raise CheckpointError(f"{folder}: the index names {lost[0]}, but no shard holds it")
    return stored


@dataclass(frozen=True)
class Folder:
    """A Qwen3.5 checkpoint on disk, text-only or multimodal."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Stored]

    @classmethod
    def open(cls, path: Path | str) -> Folder:
        """Read and check; raises CheckpointError with what is wrong."""
        path = Path(path)
        if not path.is_dir():
            raise NoModelError(f"there is no model folder {path}")
        config = read_json(path / CONFIG)
        if config.get("model_type") not in MODEL_TYPES:
            raise CheckpointError(
                f"{path} holds a {config.get('model_type', 'nameless')} model; "
                "qgpu needs a dense Qwen3.5 (qwen3_5 or qwen3_5_text)"
            )
        folder = cls(path, config, read_tensors(path))
        folder._check_tensors()
        return folder

    @property
    def text_config(self) -> dict[str, Any]:
        inner: dict[str, Any] = self.config.get("text_config", self.config)
        return inner

    @property
    def prefix(self) -> str:
        """What the text model's tensors are called before ``layers.0...``; transformers keeps the
        multimodal names when it saves the text model of such a checkpoint."""
        if f"model.{MULTIMODAL}embed_tokens.weight" in self.tensors:
            return f"model.{MULTIMODAL}"
        return f"model.{MODEL_TYPES[self.config['model_type']]}"

    @property
    def layer_types(self) -> list[str]:
        """The kind of every layer, explicit or by the interval."""
        text = self.text_config
        every = text.get("full_attention_interval", 4)
        if not (text.get("layer_types") or isinstance(text.get("num_hidden_layers"), int)):
            raise CheckpointError(
                f"{self.path}: the config says neither layer_types nor num_hidden_layers"
            )
        return text.get("layer_types") or [
            "linear_attention" if (i + 1) % every else "full_attention"
            for i in range(text["num_hidden_layers"])
        ]

    @property
    def embedding(self) -> Stored:
        return self.tensors[f"{self.prefix}embed_tokens.weight"]

    @property
    def head(self) -> Stored:
        """The output rows: of their own, or the embedding's."""
        return self.tensors.get("lm_head.weight", self.embedding)

    def _check_tensors(self) -> None:
        """The text model's tensors are all there, have their shapes, and are nobody else's."""
        expected = expected_tensors(self.text_config, self.layer_types, self.prefix)
        if "quantization_config" in self.config:
            expected = {self._stored_name(name): shape for name, shape in expected.items()}
        for name, shape in expected.items():
            if name not in self.tensors:
                raise CheckpointError(f"{self.path} lacks the tensor {name}")
            if self.tensors[name].shape != shape:
                raise CheckpointError(
                    f"{self.path}: {name} has shape {list(self.tensors[name].shape)}, "
                    f"the config says {list(shape)}"
                )
        for name in self.tensors:
            plain = _QUANTISED.sub("._weight_qdata", name)
            if name.startswith((self.prefix + "layers.", "lm_head.")) and plain not in expected:
                raise CheckpointError(f"{self.path} has a tensor that its config lacks: {name}")

    def _stored_name(self, name: str) -> str:
        """What stands for a weight: itself, or the integers of its quantised form."""
        integers = name.removesuffix(".weight") + "._weight_qdata"
        return integers if integers in self.tensors and name not in self.tensors else name


def expected_tensors(
    text: dict[str, Any], layer_types: list[str], prefix: str
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the text model that a config describes, as transformers builds it."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    try:
        with torch.device("meta"):
            wanted = {k: v for k, v in text.items() if k != "model_type"}
            config = Qwen3_5TextConfig(**{**wanted, "layer_types": layer_types})
            model = Qwen3_5ForCausalLM(config)
    except Exception as problem:
        raise CheckpointError(
            f"the config does not describe a Qwen3.5 model: {' '.join(str(problem).split())}"
        ) from None
    shapes = {
        name.replace("model.", prefix, 1): tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
    }
    if text.get("tie_word_embeddings"):
        del shapes["lm_head.weight"]
    return shapes


# --- writing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A tensor to write: its bytes come from ``read`` when their turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Iterable[bytes]]

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def copied(name: str, stored: Stored) -> Entry:
    """A tensor that is stored elsewhere, byte for byte, under a new name."""
    return Entry(name, stored.dtype, stored.shape, stored.read)


def _header(entries: list[Entry]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in entries:
        table[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape),
                             "data_offsets": [at, at + entry.n_bytes]}  # fmt: skip
        at += entry.n_bytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_shard(path: Path, entries: list[Entry], progress: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as stream:
        head = _header(entries)
        stream.write(head)
        digest.update(head)
        for entry in entries:
            written = 0
            for chunk in entry.read():
                stream.write(chunk)
                digest.update(chunk)
                written += len(chunk)
                progress(len(chunk))
            if written != entry.n_bytes:
                raise CheckpointError(f"{entry.name} gave {written} bytes, not {entry.n_bytes}")
    return digest.hexdigest()


def write_shards(
    folder: Path,
    entries: Iterable[Entry],
    progress: Callable[[int], None] = lambda n: None,
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, str]:
    """Write sharded safetensors with their index; returns file name -> sha256."""
    weight_map: dict[int, list[str]] = {}
    digests: list[str] = []
    total = 0

    def flush(batch: list[Entry]) -> None:
        path = folder / f"shard-{len(digests):05d}.partial"
        weight_map[len(digests)] = [entry.name for entry in batch]
        digests.append(_write_shard(path, batch, progress))

    batch: list[Entry] = []
    for entry in entries:
        if batch and sum(e.n_bytes for e in batch) + entry.n_bytes > shard_bytes:
            flush(batch)
            batch = []
        batch.append(entry)
        total += entry.n_bytes
    flush(batch)
    names = [f"model-{n + 1:05d}-of-{len(digests):05d}.safetensors" for n in range(len(digests))]
    for n, name in enumerate(names):
        (folder / f"shard-{n:05d}.partial").rename(folder / name)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {key: names[n] for n, keys in weight_map.items() for key in keys},
    }
    write_json(folder / INDEX, index)
    return dict(zip(names, digests, strict=True))


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def clear_disk_error(problem: OSError, what: str) -> CheckpointError:
    """A write that failed, as one line."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(f"the disk is full: {what} was not written")
    return CheckpointError(f"{what} was not written: {problem.strerror or problem}")
