"""The costs that planners ask for, from a profile: measured times of every layer.

Source: baselines.md; the originals plan on such profiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from cona import config
from cona.cost.costs import End, LinkTier, Part
from cona.cost.model_costs import checked_bytes, checked_sizes
from cona.cost.profile_files import LayerRow, ProfileSpec, read_rows
from cona.errors import ConfigError, nearest
from cona.specs import LinkSpec
from cona.strategy import Strategy


class ProfileCosts:
    """Costs that were measured on the user's machine, and nothing else.

    Args:
        folder: holds ``layers.csv`` and ``profile.yaml``.
        num_gpus: GPUs of the cluster that is planned for; nodes are as in the profile.

    Raises:
        ConfigError: a file is missing or malformed.
    """

    def __init__(self, folder: Path, num_gpus: int) -> None:
        if not folder.is_dir():
            raise ConfigError(f"--profile {folder}: no such folder")
        (self.num_gpus,) = checked_sizes(num_gpus=num_gpus)
        self.spec = config.read_file(ProfileSpec, folder / "profile.yaml")
        name = folder.resolve().name
        self.model = self.spec.model.spec(name if name[:1].isalnum() else "profile")
        self._path = folder / "layers.csv"
        self._rows = read_rows(self._path, self.model.num_layers)

    @property
    def tps(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that were measured, ascending."""
        return tuple(sorted({tp for tp, _ in self._rows}))

    @property
    def mbss(self) -> tuple[int, ...]:
        """Micro-batches that were measured, samples, ascending."""
        return tuple(sorted({mbs for _, mbs in self._rows}))

    def layer_time(self, layer: int, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of one transformer layer and micro-batch.

        Args:
            layer: 0 to num_layers - 1; row ``layer + 1`` of the file.
            tp: tensor-parallel degree.
            mbs: samples of the micro-batch.
            part: forward, backward or both.

        Raises:
            ConfigError: no such layer or part, or (tp, mbs) was not measured.
        """
        return _part_s(self._row(layer, tp, mbs), part)

    def head_time(self, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of LM head and loss for one micro-batch; raises like layer_time."""
        return _part_s(self._row("head", tp, mbs), part)

    def embedding_time(self, tp: int, mbs: int, part: Part) -> float:
        """Return the seconds of the embedding for one micro-batch; raises like layer_time."""
        return _part_s(self._row("embedding", tp, mbs), part)

    def forward_backward_time(self, tp: int, mbs: int) -> float:
        """Return the measured seconds of one micro-batch through the whole model.

        Raises:
            ConfigError: profile.yaml has no number for (tp, mbs).
        """
        whole = self.spec.forward_backward_ms
        if isinstance(whole, float):
            return whole / 1e3
        sizes = {tuple(map(int, key.split(","))): value for key, value in whole.items()}
        if (tp, mbs) not in sizes:
            have = ", ".join(f"'{key}'" for key in whole)
            raise ConfigError(
                f"profile.yaml: forward_backward_ms has no '{tp},{mbs}'; it has {have}"
            )
        return sizes[tp, mbs] / 1e3

    def batch_generator_time(self) -> float:
        """Return the seconds that fetching one micro-batch adds."""
        return self.spec.batch_generator_ms / 1e3

    def optimizer(self, tp: int, pp: int) -> float:
        """Return the seconds of the optimizer's step: the whole model's, over tp*pp GPUs."""
        tp, pp = checked_sizes(tp=tp, pp=pp)
        return self.spec.optimizer_ms / 1e3 / (tp * pp)

    def p2p(self, num_bytes: float) -> float:
        """Return the seconds of a message between stages; the slowest hop of the cluster."""
        link = self._slowest(self.num_gpus)
        return link.latency_us * 1e-6 + checked_bytes(num_bytes) / (link.bandwidth_gb_s * 1e9)

    def allreduce(self, num_bytes: float, n: int) -> float:
        """Return the seconds of a ring all-reduce on each of n consecutive ranks."""
        (ranks,) = checked_sizes(n=n)
        link, size = self._slowest(ranks), checked_bytes(num_bytes)
        if ranks == 1:
            return 0.0
        sent = 2 * (ranks - 1) / ranks * size
        return link.latency_us * 1e-6 + sent / (link.bandwidth_gb_s * 1e9)

    def params_bytes(self, layer: int | End) -> int:
        """Return the bytes of weights of a layer or an end, by the least (tp, mbs)."""
        return int(self._row(layer, *min(self._rows)).params_bytes)

    def link(self, tier: LinkTier) -> LinkSpec:
        """Return the link of a tier. Raises ConfigError: no such tier."""
        if tier not in get_args(LinkTier):
            raise ConfigError(f"unknown tier '{tier}': {nearest(tier, get_args(LinkTier))}")
        links = {"intra_node": self.spec.intra_node, "inter_node": self.spec.inter_node}
        return links[tier].spec

    def layer_memory(self, layer: int | End, tp: int, mbs: int) -> float:
        """Return the measured bytes per GPU of a layer or an end; raises like layer_time."""
        return self._row(layer, tp, mbs).memory_mb * 1e6

    def memory(self, stage: int, strategy: Strategy) -> float:
        """Return the measured bytes of a stage's layers and of the ends that it holds.

        A profile knows neither micro-batches in flight nor techniques: what it measured counts.

        Raises:
            ConfigError: no such stage, layers do not divide, or (tp, mbs) was not measured.
        """
        count, rest = divmod(self.model.num_layers, strategy.pp)
        if rest:
            raise ConfigError(
                f"num_layers {self.model.num_layers} is not divisible by pp {strategy.pp}"
            )
        if not 0 <= stage < strategy.pp:
            raise ConfigError(f"stage {stage}: {strategy} has stages 0 to {strategy.pp - 1}")
        held: list[int | End] = list(range(stage * count, (stage + 1) * count))
        if stage == 0:
            held.append("embedding")
        if stage == strategy.pp - 1:
            held.append("head")
        return sum(self.layer_memory(layer, strategy.tp, strategy.mbs) for layer in held)

    def _slowest(self, num_ranks: int) -> LinkSpec:
        return self.link("intra_node" if num_ranks <= self.spec.gpus_per_node else "inter_node")

    def _row(self, layer: int | End, tp: int, mbs: int) -> LayerRow:
        if (tp, mbs) not in self._rows:
            raise ConfigError(self._not_measured(tp, mbs))
        if isinstance(layer, str):
            ends = {"embedding": 0, "head": self.model.num_layers + 1}
            if layer not in ends:
                raise ConfigError(f"unknown layer '{layer}': {nearest(layer, ends)}")
            return self._rows[tp, mbs][ends[layer]]
        if not 0 <= layer < self.model.num_layers:
            last = self.model.num_layers - 1
            raise ConfigError(f"layer {layer}: the profile has transformer layers 0 to {last}")
        return self._rows[tp, mbs][layer + 1]

    def _not_measured(self, tp: int, mbs: int) -> str:
        have = "; ".join(
            f"tp {degree}: mbs " + ", ".join(str(m) for t, m in sorted(self._rows) if t == degree)
            for degree in self.tps
        )
        return (
            f"{self._path}: tp {tp}, mbs {mbs} was not measured (measured: {have}); "
            f"measure it, or allow no larger --mbs-max"
        )


def _part_s(row: LayerRow, part: Part) -> float:
    both_ms = row.forward_ms + row.backward_ms
    times_ms = {"forward": row.forward_ms, "backward": row.backward_ms, "both": both_ms}
    if part not in times_ms:
        raise ConfigError(f"unknown part '{part}': {nearest(part, times_ms)}")
    return times_ms[part] / 1e3
