"""The same on ranks: torchrun --nproc-per-node 2 examples/data_parallel_loop.py ddp [FOLDER]

Or fsdp2 instead of ddp. The folder gets the advice as a log.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from cona.advisor import Advisor
from cona.advisor_norms import NormCollector
from cona.strategy import Layout, Techniques

is_fsdp = sys.argv[1] == "fsdp2"
log = Path(sys.argv[2]) / "advice.jsonl" if len(sys.argv) > 2 else None
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = (
    nn.Embedding(512, 64),
    nn.Linear(64, 256),
    nn.GELU(),
    nn.Linear(256, 512),
    nn.LogSoftmax(-1),
)
model: nn.Module = nn.Sequential(*layers)
model = fully_shard(model) if is_fsdp else DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
text = torch.randint(64, (4096, 65)).cumsum(1) % 512

norms = NormCollector(model)
advisor = Advisor.of(
    model="gpt3-1.3b-proxy",
    cluster=f"local-cpu@{world}",
    layout=Layout(dp=world, tp=1, pp=1),
    techniques=Techniques(zero_stage=3 if is_fsdp else 0),
    gbs=(8, 64),
    budget_s=60,
    settings={"controller.min_samples": 64},
    log=log if rank == 0 else None,
)
strategy, samples = advisor.first, 0
while samples < 512:
    began = time.perf_counter()
    optimizer.zero_grad()
    batch = text[torch.arange(samples, samples + strategy.gbs) % len(text)].chunk(world)[rank]
    for micro in batch.split(strategy.mbs):
        log_p = model(micro[:, :-1]).transpose(1, 2)
        loss = nn.functional.nll_loss(log_p, micro[:, 1:])
        (loss / strategy.num_microbatches).backward()
    found = norms.take()  # a collective: every rank calls it
    optimizer.step()
    samples += strategy.gbs
    seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)  # what all ranks are told, all ranks decide alike
    decision = advisor.observe(found, seconds=float(seconds), strategy=strategy)
    strategy = decision.strategy or strategy
if rank == 0:
    print(f"loss {loss:.3f}, GNS {advisor.gns.gns or 0:.0f} samples, gbs {strategy.gbs}")
dist.destroy_process_group()
