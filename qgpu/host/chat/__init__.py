"""qgpu chat: a person asks in words, the weights compute, the model finishes the sentence."""
