"""Before any test module: Triton's kernels run in its interpreter where there is no NVIDIA GPU."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
