"""``python -m qgpu`` is the ``qgpu`` command."""

from qgpu.cli import main

main()
