"""A stand-in of the merged model in memory: the circuit before random layers of a Qwen3.5-2B."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

CIRCUIT_LAYERS = 45
TEXT_ROWS = 248_320
BASE_LAYERS = 24
SIZE = 0.02


def whole_model(plan: Any, circuit: Any) -> tuple[Any, int]:
    """(69 layers with the whole vocabulary, the id of the first machine token). The circuit's
    tensors are those of ``circuit``; the layers between it and the base's add nothing."""
    device, n, hidden = circuit.device, len(plan.layers), plan.widths.hidden
    config = circuit.config.to_dict()
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(BASE_LAYERS)]
    first = TEXT_ROWS
    config.update(
        num_hidden_layers=CIRCUIT_LAYERS + BASE_LAYERS,
        layer_types=["linear_attention"] * CIRCUIT_LAYERS + kinds,
        vocab_size=first + circuit.config.vocab_size,
    )
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config))
    generator = torch.Generator(device).manual_seed(0)
    state = {}
    mine = circuit.state_dict()
    for name, tensor in model.state_dict().items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else None
        if layer is not None and layer < n:
            state[name] = mine[name]
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            text = torch.randn(first, hidden, generator=generator, device=device) * SIZE
            state[name] = torch.cat([text.bfloat16(), mine[name]])
        elif layer is not None and layer < CIRCUIT_LAYERS:
            state[name] = torch.zeros(tensor.shape, dtype=torch.bfloat16, device=device)
        else:
            values = torch.randn(tensor.shape, generator=generator, device=device) * SIZE
            state[name] = values.bfloat16()
    model.load_state_dict(state, assign=True)
    with torch.device(device):
        model.model.rotary_emb = Qwen3_5TextRotaryEmbedding(model.config)
    return model.eval(), first
