"""A PyTorch loop that takes CONA's advice on its batch size: python examples/plain_loop.py"""

import time
from pathlib import Path

import torch
from torch import nn

from cona.advisor import Advisor
from cona.advisor_norms import NormCollector

SEQ, VOCAB = 32, 512
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 2, 256, dropout=0, batch_first=True)
model = nn.Sequential(
    nn.Embedding(VOCAB, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, VOCAB)
)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
text = torch.randint(VOCAB // 8, (4096, SEQ + 1)).cumsum(1) % VOCAB

norms = NormCollector(model)
advisor = Advisor.of(
    model="gpt3-1.3b-proxy",  # about this model: prices what was not measured yet
    cluster="local-cpu@1",
    gbs=(8, 64),
    budget_s=60,
    settings={"controller.min_samples": 64},
    log=Path("advice.jsonl"),
)
strategy, samples = advisor.first, 0
while samples < 512:
    began = time.perf_counter()
    optimizer.zero_grad()
    batch = text[torch.arange(samples, samples + strategy.gbs) % len(text)]
    for micro in batch.split(strategy.mbs):
        logits = model(micro[:, :-1]).transpose(1, 2)
        loss = nn.functional.cross_entropy(logits, micro[:, 1:])
        (loss / strategy.num_microbatches).backward()
    found = norms.take()  # before clipping
    optimizer.step()
    samples += strategy.gbs
    seconds = time.perf_counter() - began
    decision = advisor.observe(found, seconds=seconds, strategy=strategy)
    strategy = decision.strategy or strategy  # acting is ours; so is the learning rate
torch.save({"model": model.state_dict(), "advisor": advisor.state_dict()}, "checkpoint.pt")
print(f"loss {loss:.3f}, GNS {advisor.gns.gns or 0:.0f} samples, gbs {strategy.gbs}")
