"""The costs that planners ask for, from Calculon's equations.

Source: baselines.md, cost-model.md.
"""

from __future__ import annotations

from cona.cost.head import CalculonWithHead
from cona.cost.layer import Layer
from cona.cost.model_costs import ModelCosts, checked_sizes, column
from cona.specs import ClusterSpec, ModelSpec
from cona.strategy import Layout


class CalculonCosts(ModelCosts):
    """Costs by Calculon's layer equations; its layers are GPT's. The head is ours, see head.py."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        super().__init__(model, cluster)
        self._times = CalculonWithHead(model, cluster)

    def _layer(self, tp: int, mbs: int) -> Layer:
        return Layer(model=self.model, gpu=self._times.gpu, mbs=column(mbs), tp=column(tp))

    def _layer_s(self, tp: int, mbs: int) -> tuple[float, float]:
        layer = self._layer(tp, mbs)
        exchange_s = self._times.tensor_parallel(layer).forward_s
        both = layer.forward_s + exchange_s, layer.backward_s + exchange_s
        return float(both[0][0]), float(both[1][0])

    def _head_s(self, tp: int, mbs: int) -> tuple[float, float]:
        layer = self._layer(tp, mbs)
        both = self._times.head_forward_s(layer), self._times.head_backward_s(layer)
        return float(both[0][0]), float(both[1][0])

    def optimizer(self, tp: int, pp: int) -> float:
        """Return the seconds of Adam's step: a stage's layers and a vocabulary table, by tensor.

        One stage that holds both ends has two tables unless they are tied.
        """
        tp, pp = checked_sizes(tp=tp, pp=pp)
        self._check_layout(Layout(dp=1, tp=tp, pp=pp))
        layers_s = self.model.num_layers / pp * self._layer(tp, 1).optimizer_s(column(1))
        num_tables = 2 if pp == 1 and not self.model.tied_embeddings else 1
        table = column(self.model.padded_vocab_size * self.model.hidden_size / tp)
        table_s = self._times.gpu.vector_s(11 * table, 12 * table)
        return float((layers_s + num_tables * table_s)[0])
