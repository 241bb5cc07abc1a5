"""Model: the merged checkpoint through transformers, as a backend for launches.

A launch runs in a cache of its own, so text before and after it never sees a machine token. The
model alone writes the launch: the host feeds the prompt, takes the argmax over the whole
vocabulary, feeds it back, and reads the memory out of the recurrent state at Halt.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from qgpu.compiler.checkpoint import MANIFEST, Folder, read_json, sha256
from qgpu.compiler.merge import GPU_KEY
from qgpu.compiler.plan import MemoryPlace
from qgpu.errors import CheckpointError, LaunchError
from qgpu.host.graph import CAPACITY, StepGraph
from qgpu.host.launch import Execution, Job, Watch
from qgpu.machine import MachineSpec
from qgpu.tokens import Halt, Token, offset_of, tokens

CHUNK = 512  # prompt tokens in one forward pass
VERIFY_CHUNK = 256  # here every position's logits are held


def choose_device(device: str | None = None) -> torch.device:
    """The device asked for, else a GPU, else the CPU."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cpu_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def gpu_config(folder: Folder) -> dict[str, Any]:
    """What the checkpoint says of the machine in it; refuses one that cannot hold it."""
    facts: dict[str, Any] | None = folder.config.get(GPU_KEY)
    if facts is None:
        raise CheckpointError(f"{folder.path} has no GPU in it: build one with `qgpu build`")
    for key in ("spec", "circuit_layers", "first_token", "memory"):
        if key not in facts:
            raise CheckpointError(f"{folder.path}: its config says nothing of the machine's {key}")
    try:
        MachineSpec(**facts["spec"])
    except (TypeError, ValueError) as problem:
        raise CheckpointError(
            f"{folder.path}: its config does not describe a machine: {problem}"
        ) from None
    text = folder.text_config
    n = facts["circuit_layers"]
    kinds = text.get("layer_types")
    if not kinds or len(kinds) != text["num_hidden_layers"]:
        raise CheckpointError(f"{folder.path}: layer_types does not name every layer")
    if kinds[:n] != ["linear_attention"] * n:
        raise CheckpointError(f"{folder.path}: the first {n} layers must be linear_attention")
    if text.get("mamba_ssm_dtype", "float32") != "float32":
        raise CheckpointError(
            f"{folder.path}: mamba_ssm_dtype is {text['mamba_ssm_dtype']}; the machine's state "
            "must be float32"
        )
    return facts


def verify_hashes(path: Path) -> int:
    """Hold every file against the manifest; returns how many were compared."""
    files: dict[str, str] = read_json(path / MANIFEST).get("files", {})
    for name, digest in files.items():
        if not (path / name).is_file():
            raise CheckpointError(f"{path} lacks {name}, which its manifest names")
        if sha256(path / name) != digest:
            raise CheckpointError(f"{path / name} does not have the hash of the manifest")
    return len(files)


def load_hf(
    path: Path, *, device: str | None = None, dtype: str = "bfloat16", **options: Any
) -> Any:
    """A causal model from a folder; every tensor must come from the folder."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), output_loading_info=True, **options
        )
        hf, info = loaded
    except (OSError, ValueError, RuntimeError) as problem:
        line = " ".join(str(problem).split())
        raise CheckpointError(f"{path} does not load: {line}") from None
    wrong = [*info["missing_keys"], *info["mismatched_keys"]]
    if wrong:
        raise CheckpointError(f"{path} does not load whole: {wrong[0]} was not filled")
    return (hf if "device_map" in options else hf.to(choose_device(device))).eval()


def cache_argument(hf: Any) -> str:
    """What ``forward`` calls the cache: transformers 5.24 renamed ``past_key_values``."""
    return "cache" if "cache" in inspect.signature(hf.forward).parameters else "past_key_values"


class Model:
    """A merged checkpoint, loaded. ``hf`` is the plain transformers model."""

    name = "weights"

    def __init__(self, hf: Any, path: Path, facts: dict[str, Any]) -> None:
        self.hf, self.path = hf, path
        self.spec = MachineSpec(**facts["spec"])
        self.first_token: int = facts["first_token"]
        self.circuit_layers: int = facts["circuit_layers"]
        memory = facts["memory"]
        self._place = MemoryPlace(memory["layer"], memory["heads"], memory["n_words"])
        self.progress: Callable[[int, int], None] | None = None
        self._cache_argument = cache_argument(hf)
        self.graph = True  # False: no CUDA graph, every token a call of its own
        self._graph: StepGraph | None = None

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str | None = None,
        dtype: str = "bfloat16",
        hashes: bool = False,
        **options: Any,
    ) -> Model:
        """Check the folder and load it. ``options`` go to ``from_pretrained``."""
        path = Path(path)
        facts = gpu_config(Folder.open(path))
        if hashes:
            verify_hashes(path)
        return cls(load_hf(path, device=device, dtype=dtype, **options), path, facts)

    @cached_property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        try:
            return transformers.AutoTokenizer.from_pretrained(self.path)
        except (OSError, ValueError) as problem:
            line = " ".join(str(problem).split())
            raise CheckpointError(f"{self.path} has no tokenizer that loads: {line}") from None

    @property
    def where(self) -> str:
        """What runs, for people: ``bfloat16 on NVIDIA H200``."""
        dtype = str(self.hf.dtype).removeprefix("torch.")
        if self.device.type == "cuda":
            return f"{dtype} on {torch.cuda.get_device_name(self.device)}"
        units = "with" if cpu_bf16() else "without"
        return f"{dtype} on {torch.get_num_threads()} CPU threads {units} bf16 units"

    @property
    def device(self) -> torch.device:
        device: torch.device = self.hf.get_input_embeddings().weight.device
        return device

    @cached_property
    def _tokens(self) -> tuple[Token, ...]:
        return tokens(self.spec)

    def ids(self, fed: Sequence[Token]) -> list[int]:
        """Machine tokens as ids of this checkpoint's vocabulary."""
        return [self.first_token + offset_of(self.spec, token) for token in fed]

    def token(self, number: int) -> Token | None:
        """The machine token of an id; None for a text token."""
        offset = number - self.first_token
        return self._tokens[offset] if 0 <= offset < len(self._tokens) else None

    # running

    def new_cache(self) -> Any:
        """An empty cache: a launch, or a conversation, that knows of no other."""
        return transformers.DynamicCache(config=self.hf.config.get_text_config())

    def forward(self, ids: Sequence[int], cache: Any, keep: int = 1) -> torch.Tensor:
        """Logits [keep, vocabulary] of the last ``keep`` of ``ids``, fed on ``cache``."""
        inputs = torch.tensor([ids], device=self.device)
        out = self.hf(
            input_ids=inputs, use_cache=True, logits_to_keep=keep, **{self._cache_argument: cache}
        )
        logits: torch.Tensor = out.logits[0]
        return logits

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], cache: Any, chunk: int = CHUNK) -> torch.Tensor:
        """Feed ``ids`` in chunks; the logits [vocabulary] after the last."""
        logits = None
        for start in range(0, len(ids), chunk):
            logits = self.forward(ids[start : start + chunk], cache)[-1]
            if self.progress is not None:
                self.progress(min(start + chunk, len(ids)), len(ids))
        if logits is None:
            raise LaunchError("nothing was fed to the model")
        return logits

    @torch.inference_mode()
    def write(self, prompt: Sequence[Token], cache: Any) -> Iterator[Token]:
        """The tokens that the model writes after ``prompt``, greedily, up to Halt."""
        fed = self.ids(prompt)
        first = int(self.prefill(fed, cache).argmax())
        self._check_state(cache)
        with closing(self._steps(first, cache, len(fed))) as numbers:
            for place, number in enumerate(chain([first], numbers)):
                token = self.token(number)
                if token is None:
                    raise LaunchError(
                        f"token {place + 1} of the launch is id {number}, not a machine token"
                    )
                yield token
                if isinstance(token, Halt):
                    return

    def _steps(self, number: int, cache: Any, position: int) -> Generator[int]:
        """The ids that follow ``number``, which is to be fed at ``position``: on one GPU by a
        graph of the forward pass, else one forward pass after another."""
        one_gpu = self.device.type == "cuda" and len({p.device for p in self.hf.parameters()}) == 1
        if not self.graph or not one_gpu:
            while True:
                number = int(self.forward([number], cache)[-1].argmax())
                yield number
        graph = self._loaded_graph(cache, position)
        try:
            while True:
                for following in graph.run(number, position):
                    number, position = following, position + 1
                    yield number
                graph = StepGraph(self.hf, graph.cache, self._cache_argument, 2 * graph.capacity)
                self._graph = graph
        finally:
            self._state(cache).copy_(self._state(graph.cache))

    def _loaded_graph(self, cache: Any, position: int) -> StepGraph:
        """The captured step, on a copy of ``cache``; captured anew where that is too short."""
        capacity = CAPACITY
        while capacity < 2 * position:
            capacity *= 2
        if self._graph is None or self._graph.capacity < capacity:
            self._graph = StepGraph(self.hf, deepcopy(cache), self._cache_argument, capacity)
        else:
            self._graph.load(cache)
        return self._graph

    def execute(self, job: Job, watch: Watch) -> Execution:
        """Run a launch token by token."""
        cache = self.new_cache()
        trace: list[Token] = []
        for token in self.write(job.prompt(), cache):
            watch(token)
            trace.append(token)
            if len(trace) > job.max_tokens:
                raise LaunchError(
                    f"the launch did not end within {job.max_tokens} tokens (last: {token})"
                )
        return Execution(trace, self.memory(cache))

    # reading the state

    def _state(self, cache: Any) -> torch.Tensor:
        states = cache.layers[self._place.layer].recurrent_states
        state: torch.Tensor = states[0] if isinstance(states, dict) else states
        return state

    def _check_state(self, cache: Any) -> None:
        if self._state(cache).dtype != torch.float32:
            raise CheckpointError(
                f"the recurrent state is {self._state(cache).dtype}, the machine needs float32"
            )

    def memory(self, cache: Any, row: int = 0) -> list[int]:
        """The machine's memory words, read out of the recurrent state."""
        tables = self._state(cache)[row, self._place.heads].float().cpu().numpy()
        return [int(word) for word in self._place.words(np.asarray(tables))]

    # replay

    @torch.inference_mode()
    def verify_trace(
        self, prompt: Sequence[Token], trace: Sequence[Token], chunk: int = VERIFY_CHUNK
    ) -> tuple[int | None, list[int]]:
        """Feed a drafted trace by prefill and compare the argmax at every position.

        Returns the index of the first token that the model would not have written (None if it
        writes them all) and the memory afterwards. The state is that of the drafted tokens.
        """
        cache = self.new_cache()
        fed, wanted = self.ids(prompt), self.ids(trace)
        self.prefill(fed[:-1], cache)
        fed, position, wrong = [fed[-1], *wanted[:-1]], 0, None
        for start in range(0, len(fed), chunk):
            piece = fed[start : start + chunk]
            said = self.forward(piece, cache, keep=len(piece)).argmax(-1)
            right = torch.tensor(wanted[position : position + len(piece)], device=said.device)
            differs = (said != right).nonzero()
            if wrong is None and len(differs):
                wrong = position + int(differs[0])
            position += len(piece)
        return wrong, self.memory(cache)
