"""Drafted launches: the interpreter guesses the tokens, the model decides on every one of them.

This is speculative decoding with the interpreter as the draft model. The drafted trace goes through
the model's prefill; where the model's own argmax at every position is the next drafted token, the
trace is what the model would have written token by token, and the memory is read out of the model's
state. At the first token that the model would not write, the draft is dropped and the model writes
the launch alone.
"""

from __future__ import annotations

from qgpu.host.launch import Execution, Interpreter, Job, Watch
from qgpu.host.model import Model


class Drafted:
    """A model as a backend that takes drafts; the same tokens, by far fewer forward passes."""

    name = "weights"

    def __init__(self, model: Model) -> None:
        self.model, self.spec = model, model.spec
        self.where = f"{model.where}, drafted"

    def execute(self, job: Job, watch: Watch) -> Execution:
        draft = Interpreter(self.spec).execute(job, lambda token: None)
        wrong, memory = self.model.verify_trace(job.prompt(), draft.tokens)
        if wrong is not None:
            return self.model.execute(job, watch)
        for token in draft.tokens:
            watch(token)
        return Execution(draft.tokens, memory)
