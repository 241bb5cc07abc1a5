"""What the model is told: the tools, the system prompts and a few worked examples."""

from __future__ import annotations

from typing import Any

from qgpu.host.chat.source import Message, Tool

COMPUTE = "compute"
RUN_CUDA = "run_cuda"

COMPUTE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": COMPUTE,
        "description": "Compute an integer expression exactly, on the GPU inside your own weights.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "For example [1, 2, 3] @ [4, 5, 6] or sum([3, 4]) * 2",
                }
            },
            "required": ["expression"],
        },
    },
}

CUDA_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": RUN_CUDA,
        "description": "Compile a CUDA kernel and launch it on the GPU inside your own weights.",
        "parameters": {
            "type": "object",
            "properties": {
                "source": {"type": "string", "description": "CUDA C, one __global__ kernel"},
                "grid": {"type": "string", "description": "CUDA blocks: X or X,Y,Z"},
                "block": {"type": "string", "description": "threads in a CUDA block: X or X,Y,Z"},
                "args": {
                    "type": "string",
                    "description": "one argument a line, in the order of the kernel's parameters: "
                    "[1,2,3] an int array, zeros:N an array of N zeros, 5 an int",
                },
            },
            "required": ["source", "block", "args"],
        },
    },
}

NORMAL_SYSTEM = """\
You answer questions. Whenever an answer needs arithmetic, do not work it out yourself: call the \
tool compute with one expression, then say the result in one short sentence. Use the result \
exactly as the tool gives it.
Expressions hold 32-bit integers only, vectors [1, 2] and matrices [[1, 2], [3, 4]], and:
+ - * // % ** and == != < <= > >= (element by element), @ (dot and matrix product), \
& | ^ ~ << >> (bits; ** is the power),
sum prod min max argmin argmax mean sort cumsum reverse count(v, x) histogram(v, bins) \
gcd(a, b) lcm(a, b) popcount is_prime factorial fibonacci abs range(start, stop).
Comparisons and is_prime give 1 for true and 0 for false. Indices count from 0.
When no arithmetic is needed, just answer."""

ADVANCED_SYSTEM = """\
You answer questions by writing CUDA. Call the tool run_cuda with one small kernel, its launch and \
its arguments; read the result from the arrays it returns; then say it in one short sentence, \
exactly as returned.
The GPU: integers only (no float, no printf, no #include), at most {n_threads} threads in a CUDA \
block, {n_words} words of memory for everything, {n_blocks} machine blocks of code. \
Write extern "C" __global__ void name(...), with int and int* parameters. Output arrays start as \
zeros:N. If the tool returns an error, fix the kernel and call the tool again."""


def call_message(tool: str, arguments: dict[str, Any], content: str = "") -> Message:
    """The assistant's message that calls a tool, as chat templates take it."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"type": "function", "function": {"name": tool, "arguments": dict(arguments)}}
        ],
    }


def result_message(tool: str, content: str) -> Message:
    return {"role": "tool", "name": tool, "content": content}


def _example(tool: str, question: str, arguments: dict[str, str], result: str, answer: str
             ) -> list[Message]:  # fmt: skip
    return [
        {"role": "user", "content": question},
        call_message(tool, arguments),
        result_message(tool, result),
        {"role": "assistant", "content": answer},
    ]


NORMAL_EXAMPLES: list[Message] = [
    *_example(
        COMPUTE, "What is the dot product of [2, 7] and [5, 1]?",
        {"expression": "[2, 7] @ [5, 1]"}, "17", "The dot product is 17.",
    ),
    *_example(
        COMPUTE, "Eggs come in boxes of 12. I have 100 eggs. How many are left over?",
        {"expression": "100 % 12"}, "4", "4 eggs are left over.",
    ),
    *_example(
        COMPUTE, "How many primes are there below 20?",
        {"expression": "sum(is_prime(range(2, 20)))"}, "8", "There are 8 primes below 20.",
    ),
]  # fmt: skip

_SQUARES = """\
extern "C" __global__ void squares(const int *v, int *out, int n) {
    int i = threadIdx.x;
    if (i < n) out[i] = v[i] * v[i];
}"""

ADVANCED_EXAMPLES: list[Message] = _example(
    RUN_CUDA, "Square each of 3, -4, 5.",
    {"source": _SQUARES, "grid": "1", "block": "3", "args": "[3,-4,5]\nzeros:3\n3"},
    "args[0] = [3, -4, 5]\nargs[1] = [9, 16, 25]", "The squares are 9, 16 and 25.",
)  # fmt: skip
