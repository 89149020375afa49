"""What a policy would do on recorded gradient noise, on any cluster, without any training.

- trace, trace_csv: the noise, from a recorded run or from a CSV
- replay, walk: the chain of strategies that a policy takes on it
- progress: the time that a chain, or a fixed strategy, needs to the same progress
- whatif: whether chaining would pay on other clusters
"""
