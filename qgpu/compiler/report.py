"""What each circuit layer holds and how full it is: the table that `qgpu build` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qgpu.compiler.circuit import Layer
from qgpu.compiler.plan import Plan
from qgpu.compiler.space import ONE_DIM, Form


@dataclass(frozen=True)
class LayerUse:
    """One row: ``dims`` counts the residual dims that the layer reads or writes."""

    index: int
    name: str
    heads: int
    neurons: int
    dims: int


def _forms(layer: Layer) -> Iterable[Form]:
    for head in layer.heads:
        for table in (head.key, head.query, head.value, head.out):
            yield from table.values()
        yield from (head.write, head.read, head.pin)
        if head.clear is not None:
            yield head.clear
    for neuron in layer.neurons:
        yield from (neuron.gate, neuron.up, neuron.out)


def layer_uses(plan: Plan) -> list[LayerUse]:
    """One row for each layer of the plan, in order."""
    uses = []
    for index, layer in enumerate(plan.layers):
        dims = {dim for form in _forms(layer) for dim in form if dim != ONE_DIM}
        places = {plan.space.place(dim)[0] for dim in dims}
        uses.append(LayerUse(index, layer.name, len(layer.heads), len(layer.neurons), len(places)))
    return uses
