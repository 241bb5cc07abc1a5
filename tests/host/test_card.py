"""The model card: what it says of the base."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qgpu.host.build import model_card
from qgpu.machine import SMALL


def manifest(**facts: Any) -> dict[str, Any]:
    return {
        "qgpu": {"spec": asdict(SMALL), "circuit_layers": 45},
        "base": {"model_type": "qwen3_5_text", "layers": 2, "embedding_rows": 2048},
        "facts": {"silence": {"holds": True, "rows": 2048}, **facts},
    }


def test_a_base_of_the_hub_is_named_in_the_metadata() -> None:
    card = model_card(manifest(hub={"model": "some/base", "commit": "0" * 40}), "0" * 40)
    assert "base_model: some/base\nbase_model_relation: merge\n" in card
    assert "# some/base with a GPU in its weights" in card


def test_a_folder_is_no_model_of_the_hub() -> None:
    card = model_card(manifest(), "base")
    assert "base_model" not in card
    assert "# base with a GPU in its weights" in card
