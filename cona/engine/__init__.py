"""Engines execute training steps; `base.py` is the contract, `megatron.py` the main one."""
