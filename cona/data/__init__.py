"""Data: text to token streams to samples, each a pure function of text, settings and seed.

Source: method.md 7.
"""

from cona.data.dataset import EvaluationSamples, TrainingSamples
from cona.data.prepared import PreparedData, cache_dir, prepare

__all__ = ["EvaluationSamples", "PreparedData", "TrainingSamples", "cache_dir", "prepare"]
