"""The circuit's layers by what they do, for the trace page's map."""

from __future__ import annotations

from typing import Any

from qgpu.machine import MachineSpec

# What each kind of layer does; stages repeat, so their number is cut off the name.
DOES = {
    "header": "finds the record that the token belongs to",
    "assemble": "puts the pieces of values together",
    "plan": "reads the machine block's plan from the ROM",
    "fetch": "reads operands from the registers, forwards earlier results",
    "decode": "splits operands into digits, multiplies digits, picks the operation's lines",
    "carry": "carries of the adder, coarse shifts, column sums of products",
    "compare": "comparisons, digits of products",
    "sum": "sums and addresses, fine shifts, minimum and maximum",
    "memory": "loads; logic, byte and lane permutes, counts",
    "finish": "finishes products; fetches the control of the next stage",
    "gather": "gathers the results and the branch",
    "inspect": "looks for what has to be written",
    "choose": "which warps can run",
    "rank": "orders the lanes and stores",
    "spell": "spells the value as a token",
    "pick": "picks the lanes that run next",
    "say": "decides what kind of token comes next",
    "name": "names the next token in the output code",
}
IDLE = "passes everything on: free for more circuit"


def layer_map(spec: MachineSpec) -> list[dict[str, Any]]:
    """One row a circuit layer: name, unit, what it does, how many heads and neurons it uses."""
    from qgpu.compiler.plan import N_CIRCUIT_LAYERS, Widths, build_plan

    # The widths of Qwen3.5-2B: the layers' names and sizes are the same for every base.
    plan = build_plan(spec, Widths(2048, 6144, 16, 16, 128, 4, 1e-6))
    rows = []
    for layer in plan.layers:
        unit, _, part = layer.name.rpartition(".")
        rows.append({
            "name": layer.name, "unit": unit or part, "does": DOES.get(part, part),
            "heads": len(layer.heads), "neurons": len(layer.neurons),
        })  # fmt: skip
    idle = N_CIRCUIT_LAYERS - len(rows)
    return rows + [
        {"name": "idle", "unit": "idle", "does": IDLE, "heads": 0, "neurons": 0}
        for _ in range(idle)
    ]
