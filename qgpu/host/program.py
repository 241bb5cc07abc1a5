"""Program and Kernel: source text on its way to machine blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from qgpu.errors import UsageError
from qgpu.host.names import plain_name
from qgpu.isa import MachineBlock
from qgpu.kernel import LaunchShape, Lowered
from qgpu.machine import REFERENCE, MachineSpec
from qgpu.ptxir import Function, Module, Variable

KINDS = ("cuda", "ptx")


@dataclass(frozen=True)
class Kernel:
    """One ``.entry`` of a program. Machine blocks exist only for a launch shape: see ``lower``."""

    program: Program
    function: Function

    @property
    def name(self) -> str:
        """The entry's name in the PTX."""
        return self.function.name

    @property
    def plain(self) -> str:
        """The name as the source has it, without C++ mangling."""
        return plain_name(self.name)

    @property
    def ptx(self) -> str:
        return self.program.ptx

    @property
    def params(self) -> list[Variable]:
        return self.function.params

    def lower(self, shape: LaunchShape, spec: MachineSpec = REFERENCE) -> Lowered:
        """The machine blocks for one launch shape; refuses what the machine cannot hold."""
        from qgpu.ptx.lower import lower

        return lower(self.program.module, self.name, spec, shape)

    @cached_property
    def _plain(self) -> Lowered:
        return self.lower(LaunchShape(params=(0,) * len(self.params)))

    @property
    def blocks(self) -> list[MachineBlock]:
        """The machine blocks for a launch of one thread."""
        return self._plain.blocks

    @property
    def registers(self) -> int:
        """Registers that a launch of one thread uses."""
        return self._plain.n_registers


@dataclass(frozen=True)
class Program:
    """A compiled source: the PTX and what was parsed from it."""

    source: str
    kind: str
    file: str
    ptx: str
    module: Module

    @cached_property
    def as_written(self) -> Module:
        """The module with every access of the source: CUDA C is compiled without optimisation,
        which would fold reads of what was never written."""
        from qgpu.ptx.clang import cuda_to_ptx
        from qgpu.ptx.parse import parse_ptx

        if self.kind != "cuda":
            return self.module
        return parse_ptx(cuda_to_ptx(self.source, file=self.file, opt="-O0"), self.module.file)

    @property
    def kernels(self) -> list[str]:
        return [function.name for function in self.module.kernels]

    def kernel(self, name: str | None = None) -> Kernel:
        """The kernel called ``name`` (mangled or plain); without a name, the only one."""
        found = [
            function
            for function in self.module.kernels
            if name is None or name in (function.name, plain_name(function.name))
        ]
        exact = [function for function in found if function.name == name]
        if exact or len(found) == 1:
            return Kernel(self, (exact or found)[0])
        if not self.kernels:
            raise UsageError(f"{self.file} has no kernel")
        names = ", ".join(plain_name(n) for n in self.kernels)
        if name is None:
            raise UsageError(f"{self.file} has {len(found)} kernels ({names}): name one")
        if found:
            raise UsageError(f"{self.file} has several kernels {name}: name one of "
                             + ", ".join(f.name for f in found))  # fmt: skip
        raise UsageError(f"{self.file} has no kernel {name}; it has {names}")


def compile(source: str, kind: str = "cuda", *, file: str | None = None) -> Program:
    """Compile CUDA C (or read PTX); errors name the file and the line."""
    from qgpu.ptx.clang import cuda_to_ptx
    from qgpu.ptx.parse import parse_ptx

    if kind not in KINDS:
        raise UsageError(f"unknown kind of source {kind!r}: one of {', '.join(KINDS)}")
    if not isinstance(source, str):
        raise UsageError(f"the source is {type(source).__name__}, not text")
    file = file or ("kernel.cu" if kind == "cuda" else "kernel.ptx")
    ptx = cuda_to_ptx(source, file=file) if kind == "cuda" else source
    ptx_file = file if kind == "ptx" else str(PurePath(file).with_suffix(".ptx"))
    return Program(source, kind, file, ptx, parse_ptx(ptx, ptx_file))
