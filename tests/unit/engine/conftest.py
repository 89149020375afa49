"""The plain PyTorch models live with the benchmarks; the tests judge the engine by them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
