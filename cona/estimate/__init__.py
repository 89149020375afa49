"""What a tier takes on a cluster, before anyone submits it: jobs, hours, disk and memory.

Nothing is trained or measured: seconds are those of the cost model. Where a policy's course is not
known beforehand, it is priced at the batch size that takes most, so that figures are upper ones.

- run_cost: one run, on ranks or in the one process of the modelled clock
- look_ahead: what the oracle's forks train beside its run
- tier_cost: jobs and sums
"""

from cona.estimate.tier_cost import ModelCost, TierCost, estimate

__all__ = ["ModelCost", "TierCost", "estimate"]
