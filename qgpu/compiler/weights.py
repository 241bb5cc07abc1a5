"""The circuit as Qwen3_5 tensors: 45 decoder layers, embedding rows and lm_head rows, in bf16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from qgpu.compiler.emit import LayerWeights, Silence, circuit_layers, embedding_rows, head_rows
from qgpu.compiler.plan import Plan, Widths


def widths_of(config: Mapping[str, Any]) -> Widths:
    """Widths from a Qwen3.5 text config (the ``text_config`` of a multimodal one)."""
    return Widths(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        n_key_heads=config["linear_num_key_heads"],
        n_value_heads=config["linear_num_value_heads"],
        head_dim=config["linear_key_head_dim"],
        conv_kernel=config["linear_conv_kernel_dim"],
        eps=config["rms_norm_eps"],
    )


def _tensor(x: np.ndarray | csr_array) -> torch.Tensor:
    dense = x.toarray() if isinstance(x, csr_array) else x
    return torch.from_numpy(np.ascontiguousarray(dense)).to(torch.bfloat16)


def layer_tensors(w: LayerWeights) -> dict[str, torch.Tensor]:
    """One layer's tensors by their names below ``model.layers.N.``; all bf16."""
    return {
        "input_layernorm.weight": _tensor(w.input_norm),
        "linear_attn.in_proj_qkv.weight": _tensor(w.qkv),
        "linear_attn.conv1d.weight": _tensor(w.conv)[:, None, :].contiguous(),
        "linear_attn.in_proj_z.weight": _tensor(w.z),
        "linear_attn.in_proj_b.weight": _tensor(w.b),
        "linear_attn.in_proj_a.weight": _tensor(w.a),
        "linear_attn.A_log": _tensor(w.a_log),
        "linear_attn.dt_bias": _tensor(w.dt_bias),
        "linear_attn.norm.weight": _tensor(w.read_norm),
        "linear_attn.out_proj.weight": _tensor(w.out),
        "post_attention_layernorm.weight": _tensor(w.post_norm),
        "mlp.gate_proj.weight": _tensor(w.gate),
        "mlp.up_proj.weight": _tensor(w.up),
        "mlp.down_proj.weight": _tensor(w.down),
    }


def circuit_tensors(plan: Plan, silence: Silence) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """(layer index, tensors) of the 45 layers, in order, one at a time."""
    for index, weights in enumerate(circuit_layers(plan, silence)):
        yield index, layer_tensors(weights)


def machine_embedding(plan: Plan) -> torch.Tensor:
    """[n_tokens, hidden] bf16, in the order of ``tokens(spec)``."""
    return _tensor(embedding_rows(plan))


def machine_head(plan: Plan, size: float) -> torch.Tensor:
    """lm_head rows of the machine tokens, [n_tokens, hidden] bf16."""
    return _tensor(head_rows(plan, size))
