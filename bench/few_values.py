"""Are the circuit's weights exact in fp8?

For every matrix of every layer: is there one power of two for the tensor, or one for each row, that
makes all weights e4m3 or e5m2 numbers?

The guard dims are left out: their weights are the base's direction, which has a scale of its own.

    python bench/few_values.py [--spec small|reference]
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import ml_dtypes
import numpy as np

from qgpu.compiler.emit import circuit_layers
from qgpu.compiler.plan import Widths
from qgpu.compiler.silence import make_silent
from qgpu.machine import SPECS

FORMATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
MATRICES = ("qkv", "z", "b", "a", "out", "gate", "up", "down")
WIDTHS_2B = Widths(2048, 6144, 16, 16, 128, 4, 1e-6)


def exact(values: np.ndarray, kind: type) -> bool:
    """Whether a power of two times ``values`` are all numbers of the format."""
    top = int(np.frexp(np.abs(values).max())[1])
    for shift in range(-20, 20):
        scaled = values.astype(np.float64) * 2.0 ** (shift - top)
        if np.abs(scaled).max() > float(ml_dtypes.finfo(kind).max):
            continue
        if (scaled.astype(np.float32).astype(kind).astype(np.float64) == scaled).all():
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", choices=sorted(SPECS), default="small")
    spec = SPECS[parser.parse_args().spec]
    rng = np.random.default_rng(0)
    table = rng.standard_normal((500, 2048)) + 0.6 * rng.standard_normal(2048)
    made = make_silent(
        spec, WIDTHS_2B, table.astype(ml_dtypes.bfloat16).astype(np.float32), run=False
    )
    counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(6, int))
    magnitudes: dict[str, set[float]] = defaultdict(set)
    for layer in circuit_layers(made.plan, made.silence):
        for name in MATRICES:
            matrix = getattr(layer, name)
            if not matrix.nnz:
                continue
            guard = np.isin(matrix.indices, made.silence.dims) & (name in ("z", "b", "a", "gate"))
            values = np.where(guard, 0, np.abs(matrix.data))
            magnitudes[name].update(values[values > 0].tolist())
            found = counts[name]
            found[0] += 1
            found[1:3] += [exact(values[values > 0], kind) for kind in FORMATS]
            rows = defaultdict(int)
            for row in np.flatnonzero(np.diff(matrix.indptr)):
                part = np.unique(values[matrix.indptr[row] : matrix.indptr[row + 1]])
                rows[part[part > 0].tobytes()] += 1
            for part, times in rows.items():
                if part:
                    found[3] += times
                    fits = [exact(np.frombuffer(part, np.float32), kind) for kind in FORMATS]
                    found[4:6] += np.array(fits, int) * times
    print("matrix tensors e4m3 e5m2   rows  e4m3  e5m2  magnitudes")
    for name, found in counts.items():
        tensors, rows = found[:3], found[3:]
        print(f"{name:6} {tensors[0]:7} {tensors[1]:4} {tensors[2]:4} "
              f"{rows[0]:6} {rows[1]:5} {rows[2]:5}  {len(magnitudes[name])}")  # fmt: skip


if __name__ == "__main__":
    main()
