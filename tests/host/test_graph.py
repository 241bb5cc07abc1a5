"""The parts of the captured decode step against the reference, and the step without a GPU."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

from qgpu.host.graph import STEP_PARTS, StepGraph, conv_step, delta_step, step_parts

pytestmark = pytest.mark.filterwarnings("ignore")


def one_hot_case(seed: int, heads: int = 4, dim: int = 16) -> dict[str, Any]:
    """What the circuit feeds: one-hot keys and queries, bits, beta 0 or 1, g 0 or far below."""
    torch.manual_seed(seed)

    def hot() -> torch.Tensor:
        rows = torch.randint(dim, (heads,))
        return 128.0 * torch.nn.functional.one_hot(rows, dim)[None, None].bfloat16()

    return {
        "query": hot(), "key": hot(),
        "value": 128.0 * torch.randint(2, (1, 1, heads, dim)).bfloat16(),
        "g": torch.where(torch.rand(1, 1, heads) < 0.2, -1048.0, 0.0),
        "beta": torch.randint(2, (1, 1, heads)).bfloat16(),
        "initial_state": 128.0 * torch.randint(2, (1, heads, dim, dim)).float(),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_delta_step_is_the_reference_on_machine_values(seed: int) -> None:
    case = one_hot_case(seed)
    want, state = reference.torch_recurrent_gated_delta_rule(
        **{k: v.clone() for k, v in case.items()},
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    mine = {k: v.clone() for k, v in case.items()}
    got, new = delta_step(**mine)
    assert torch.equal(got, want)
    assert torch.equal(new, state)
    assert new is mine["initial_state"]


def test_conv_step_is_the_reference() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 8, 1).bfloat16(), torch.eye(4)[torch.randint(4, (8,))].bfloat16()
    state = torch.randn(1, 8, 4).bfloat16()
    other = state.clone()
    want = reference.causal_conv1d_update(x, other, weight, None, "silu")
    got = conv_step(x, state, weight, None, "silu")
    assert torch.equal(got, want)
    assert torch.equal(state, other)


def test_parts_are_put_back() -> None:
    plain = {name: getattr(reference, name) for name in STEP_PARTS}
    with pytest.raises(ValueError, match="inside"), step_parts():
        assert reference.causal_conv1d_update is conv_step
        raise ValueError("inside")
    assert {name: getattr(reference, name) for name in STEP_PARTS} == plain


def test_static_steps_write_what_the_dynamic_cache_writes() -> None:
    """A tiny random model, several tokens past a prefill, in float32."""
    torch.manual_seed(1)
    config = reference.Qwen3_5TextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, vocab_size=50,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16,
        linear_value_head_dim=16, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    model = reference.Qwen3_5ForCausalLM(config).eval()
    with torch.inference_mode():
        out = model(torch.arange(7)[None], use_cache=True)
        cache = out.past_key_values
        first = int(out.logits[0, -1].argmax())
        steps = StepGraph(model, deepcopy(cache), "past_key_values", 32)
        got = [number for number, _ in zip(steps.run(first, 7), range(6), strict=False)]
        want, number = [], first
        for _ in range(6):
            out = model(torch.tensor([[number]]), past_key_values=cache, use_cache=True)
            number = int(out.logits[0, -1].argmax())
            want.append(number)
    assert got == want
