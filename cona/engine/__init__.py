"""Engines execute training steps; `base.py` is the contract, `megatron.py` the main one."""

import warnings

# Apex and Transformer Engine are optional; megatron says so at every import.
warnings.filterwarnings("ignore", message=".*(Transformer Engine|Apex).*", module="megatron")
