"""Real ranks on gloo: ``from ranks import run_ranks``; the small models are the engine tests'."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "engine"))
