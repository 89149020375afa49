"""A PyTorch loop that takes CONA's advice on its batch size: python examples/plain_loop.py [FOLDER]

The folder gets a checkpoint, and the advice as a log; by default it is a temporary one.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

from cona.advisor import Advisor, SquaredNorms
from cona.advisor_norms import NormCollector
from cona.strategy import Strategy

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="cona-example-"))
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
text = torch.randint(4, (4096, 33)).cumsum(1) % 64  # one of four may follow: the least loss is ln 4
norms = NormCollector(model)


def iterate(strategy: Strategy) -> tuple[SquaredNorms, float, float]:
    """Train on one batch; return the norms of its gradients, its loss and its seconds."""
    began = time.perf_counter()
    optimizer.zero_grad()
    for micro in text[torch.randint(len(text), (strategy.gbs,))].split(strategy.mbs):
        loss = nn.functional.cross_entropy(model(micro[:, :-1]).transpose(1, 2), micro[:, 1:])
        (loss / strategy.num_microbatches).backward()
    found = norms.take()  # before clipping
    optimizer.step()
    return found, loss.item(), time.perf_counter() - began


sizes = [Strategy(dp=1, tp=1, pp=1, mbs=4, gbs=gbs) for gbs in (8, 16, 32, 64)]
advisor = Advisor.of(
    model="gpt3-1.3b-proxy",  # prices strategies that were not measured
    cluster="local-cpu@1",
    gbs=(8, 64),
    budget_s=60,
    times_s={size: median(iterate(size)[2] for _ in range(3)) for size in sizes},
    settings={"controller.min_samples": 512},
    log=folder / "advice.jsonl",
)
strategy, samples = advisor.first, 0
while samples < 4096:
    found, loss, seconds = iterate(strategy)
    samples += strategy.gbs
    decision = advisor.observe(found, seconds=seconds, strategy=strategy)
    if decision.strategy or advisor.iteration == 1 or samples % 512 < strategy.gbs:
        said = f"go to gbs {decision.strategy.gbs}" if decision.strategy else "stay"
        print(f"{samples} samples, loss {loss:.2f}, gbs {strategy.gbs}: {said}, {decision.reason}")
    strategy = decision.strategy or strategy  # acting is ours; so is the learning rate
torch.save({"model": model.state_dict(), "advisor": advisor.state_dict()}, folder / "checkpoint.pt")
print(f"loss {loss:.2f}, GNS {advisor.gns.gns or 0:.0f} samples, gbs {strategy.gbs}; see {folder}")
