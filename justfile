# Recipes of qgpu. `pip install rust-just` gives `just`; everything else is made here.

set shell := ["bash", "-euo", "pipefail", "-c"]

python := env("PYTHON", "python3")
# The CPU build suffices without an NVIDIA GPU; name another with TORCH="torch==2.13.0+cu130" etc.
torch := env("TORCH", "torch==2.13.0")
bin := ".venv/bin"
model := env("QGPU_MODEL", "build/qwen3.5-2b-gpu")
# Test processes, one thread each; the dense models take up to 8 GB in one of them.
workers := env("QGPU_TEST_WORKERS", "2")
base := env("QGPU_BASE", "Qwen/Qwen3.5-2B")

_list:
    @just --list --unsorted

# A CUDA dot product in the weights, nothing downloaded: stand-in, build, launch, check
demo: setup
    {{bin}}/qgpu standin --like demo --out build/demo-base
    {{bin}}/qgpu build --base build/demo-base --out build/demo
    {{bin}}/qgpu run examples/01_dot.cu --model build/demo --check

# What CI runs
test *ARGS: setup
    OMP_NUM_THREADS=1 {{bin}}/python -m pytest -q -m "not slow" -n {{workers}} --dist loadfile {{ARGS}}

# What is too long for CI
test-slow *ARGS: setup
    {{bin}}/python -m pytest -q -m slow {{ARGS}}

# Compile the GPU and merge it in front of Qwen3.5-2B (fetched, or from the hub's cache)
build *ARGS: setup
    {{bin}}/qgpu build --base {{base}} --out {{model}} {{ARGS}}

# Talk to the merged model
chat *ARGS: setup
    {{bin}}/qgpu chat --model {{model}} {{ARGS}}

# ruff, mypy, and the direction of imports
lint: setup
    {{bin}}/ruff check .
    {{bin}}/mypy
    {{bin}}/lint-imports

# Text drift of the merged model against its base
kl *ARGS: setup
    {{bin}}/qgpu kl --base {{base}} --model {{model}} {{ARGS}}

# Tokens for every kernel of the corpus, and speed
bench *ARGS: setup
    {{bin}}/python bench/tokens.py {{ARGS}}

# What this machine has and lacks
doctor: setup
    {{bin}}/qgpu doctor

# The virtual environment, made once and again when pyproject.toml changes
setup:
    @if [ ! -e .venv/.ready ] || [ pyproject.toml -nt .venv/.ready ]; then just _venv; fi

_venv:
    [ -x {{bin}}/python ] || {{python}} -m venv .venv
    {{bin}}/python -m pip install --quiet --upgrade pip
    {{bin}}/python -m pip install --quiet "{{torch}}"
    {{bin}}/python -m pip install --quiet --editable . --group dev
    touch .venv/.ready
