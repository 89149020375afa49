"""CONA-bench: online parallelism-strategy chaining for LLM training, and its benchmark."""

__version__ = "0.1.0"
