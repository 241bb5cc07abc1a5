"""The circuit alone as a stock transformers model: its layers and one empty attention layer."""

from __future__ import annotations

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from qgpu.compiler.emit import NO_SILENCE
from qgpu.compiler.plan import Plan
from qgpu.compiler.weights import circuit_tensors, machine_embedding, machine_head
from qgpu.tokens import tokens

HEAD_SIZE = 0.05


def circuit_model(plan: Plan, dtype: torch.dtype, device: str = "cpu") -> Qwen3_5ForCausalLM:
    """Token ids are offsets of machine tokens. The last layer is full attention of zeros, since the
    cache of transformers wants one."""
    n, w = len(plan.layers), plan.widths
    config = Qwen3_5TextConfig(
        hidden_size=w.hidden, intermediate_size=w.intermediate, num_hidden_layers=n + 1,
        vocab_size=len(tokens(plan.spec)), tie_word_embeddings=False,
        layer_types=["linear_attention"] * n + ["full_attention"],
        linear_num_key_heads=w.n_key_heads, linear_num_value_heads=w.n_value_heads,
        linear_key_head_dim=w.head_dim, linear_value_head_dim=w.head_dim,
        linear_conv_kernel_dim=w.conv_kernel, num_attention_heads=8, num_key_value_heads=2,
        head_dim=256,
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(config)
    state = {
        name: torch.zeros(t.shape, dtype=dtype, device=device)
        for name, t in model.state_dict().items()
        if name.startswith((f"model.layers.{n}.", "model.norm."))
    }
    for index, tensors in circuit_tensors(plan, NO_SILENCE):
        if index < n:
            for name, tensor in tensors.items():
                state[f"model.layers.{index}.{name}"] = tensor.to(device, dtype)
    state["model.embed_tokens.weight"] = machine_embedding(plan).to(device, dtype)
    state["lm_head.weight"] = machine_head(plan, HEAD_SIZE).to(device, dtype)
    model.load_state_dict(state, assign=True)
    with torch.device(device):
        model.model.rotary_emb = Qwen3_5TextRotaryEmbedding(config)
    return model.eval()
