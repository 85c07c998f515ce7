"""The trainer in one process: a causal language model of transformers, its gradient in one flat accumulator.

Rows run one after another, so that memory is that of the longest row, not of the micro-step; of long rows some decoder
layers are computed again in the backward pass. What a row's segments have in common is computed once. Each target's
weight is in its segment, so micro-steps simply add up. Over several ranks: `gyre.trainers.fsdp`.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gyre.rl import objective
from gyre.rl.algorithms.port import Settings
from gyre.rl.experts import apart
from gyre.rl.objective import Decision
from gyre.trainers.attention import attach
from gyre.trainers.batches import RowTensors, row_tensors, target_log_probs
from gyre.trainers.checkpoint import load_tensors, save_tensors
from gyre.trainers.executions import executions_of, spread_over_rows
from gyre.trainers.losses import slope_of
from gyre.trainers.optimizer import Adam, AdamSettings, refuse_misfit
from gyre.trainers.port import AccumulatorSpoilt, Applied, Finished, MicroStepRefused, Saved
from gyre.trainers.recompute import Recompute
from gyre.trainers.stats import Tally
from schemas.training import MicroStepEnqueued


class TorchTrainer:
    """Implements `gyre.trainers.port.Trainer`.

    Args:
        model: float32 (float64 works too), on the CPU, in eval mode: dropout would give each cell another gradient.
        temperature: the rollout's, above 0.
        settings: the objective.
        adam: the optimizer; its state is made when first needed, which is on the core.
        share_prefixes: compute a prefix that segments of a row have in common once (tree attention).
        activation_bytes: most that a row's layers keep for the backward pass; see `Recompute`.
    Raises:
        ValueError: the temperature, or a model that is not full attention under one linear head.
    """

    def __init__(
        self,
        model: Any,
        temperature: float,
        settings: Settings,
        adam: AdamSettings,
        *,
        share_prefixes: bool,
        activation_bytes: int,
    ) -> None:
        refuse_untrainable(model.config, temperature)
        self._model = model.eval()
        attach(model)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self._temperature = temperature
        self._settings = settings
        self._adam_settings = adam
        self._adam: Adam | None = None
        self._parameters = dict(model.named_parameters())
        self._shapes = {name: each.shape for name, each in self._parameters.items()}
        self._share_prefixes = share_prefixes
        self._recompute = Recompute(model, activation_bytes)
        self._flat: Tensor | None = None
        self._spoilt = False

    @property
    def gradient(self) -> Tensor:
        """See the port; zero if nothing was accumulated."""
        self._refuse_spoilt()
        return self._accumulator()

    def load(self, weights: Path) -> None:
        """See the port."""
        found = load_tensors(weights)
        self._hold()
        state, tied = file_state(self._model)
        refuse_misfit(state, {name: each for name, each in found.items() if name not in tied}, str(weights))
        with torch.no_grad():
            for name, each in state.items():
                each.copy_(found[name])
        self.zero()

    def zero(self) -> None:
        """See the port."""
        self._accumulator().zero_()
        self._spoilt = False

    def release(self) -> None:
        """See the port."""
        self._flat = self._adam = None
        for parameter in self._parameters.values():
            parameter.grad = None
            parameter.data = parameter.data.new_empty(0)

    def apply(self, reduced: Tensor) -> Applied:
        """See the port."""
        return self._optimizer().apply(reduced)

    def save(self, folder: Path, sequence: int = 0) -> Saved:
        """See the port. Files are `weights/<digest>.safetensors` and `optimizer/<digest>.safetensors`."""
        weights = save_tensors(file_state(self._model)[0], folder, "weights")
        return Saved(weights, save_tensors(self._optimizer().state(), folder, "optimizer"))

    def restore(self, weights: Path, optimizer: Path) -> None:
        """See the port."""
        state = apart(load_tensors(optimizer))
        self._hold()
        refuse_misfit(self._optimizer().state(), state, str(optimizer))
        self.load(weights)
        self._optimizer().restore(state)

    def micro_step(self, enqueued: MicroStepEnqueued) -> Finished:
        """See the port."""
        self._refuse_spoilt()
        owners, advantages = executions_of(enqueued)
        share = self._share_prefixes
        rows = [row_tensors(each, owners, self._vocabulary, share_prefixes=share) for each in enqueued.rows]
        if enqueued.kind == "measure":
            return self._measured(enqueued, owners, rows)
        decisions = {
            owners[each.execution]: Decision(each.ratio, each.mask)
            for each in enqueued.masks
            if each.execution in owners
        }
        self._decide_spread(rows, decisions, advantages)
        self._spoilt = True  # until every row is in: half a micro-step must never reach a reduction
        tally = Tally(len(owners))
        for row in rows:
            self._train(row, decisions, advantages, tally)
        if not self._accumulator().isfinite().all():  # found here, it costs one claim; found in the sum, the step
            raise AccumulatorSpoilt("the gradient is not finite under these weights: go back to the last good version")
        self._spoilt = False
        return Finished(stats=tuple(tally.stats(index, each, decisions[index]) for each, index in owners.items()))

    def _measured(self, enqueued: MicroStepEnqueued, owners: dict[str, int], rows: list[RowTensors]) -> Finished:
        return Finished(measured=self._tally(rows, len(owners)).ratios(enqueued, owners))

    def _decide_spread(self, rows: list[RowTensors], decisions: dict[int, Decision], advantages: list[float]) -> None:
        """Measure first what lies in several rows: a ratio needs all of an execution's targets before any trains."""
        spread = spread_over_rows(rows, len(advantages)) - decisions.keys()
        touched = [row for row in rows if spread & set(row.owner.tolist())]
        tally = self._tally(touched, len(advantages))
        for index in spread:
            decisions[index] = objective.decide(*tally.measured(index), advantages[index], self._settings)

    @torch.no_grad()
    def _tally(self, rows: list[RowTensors], executions: int) -> Tally:
        tally = Tally(executions)
        for row in rows:
            log_pi = target_log_probs(self._model, row, self._temperature)
            if not log_pi.isfinite().all():
                raise MicroStepRefused("log pi is not finite under these weights: go back to the last good version")
            tally.add(row.owner, log_pi, row.log_roll, torch.zeros_like(log_pi))
        return tally

    def _train(self, row: RowTensors, decisions: dict[int, Decision], advantages: list[float], tally: Tally) -> None:
        self._accumulator()
        self._recompute.prepare(row.ids.numel())
        log_pi = target_log_probs(self._model, row, self._temperature)
        if not log_pi.isfinite().all():
            raise AccumulatorSpoilt("log pi is not finite under these weights: go back to the last good version")
        slope = slope_of(row, log_pi.detach(), decisions, advantages, self._settings, tally)
        if slope.any():  # a row that is masked throughout, or without advantage, costs no backward pass
            log_pi.backward(slope)  # type: ignore[no-untyped-call]

    def _hold(self) -> None:
        """Have room for the parameters again, after `release`; an accumulator made meanwhile has none for them."""
        for name, parameter in self._parameters.items():
            if parameter.shape != self._shapes[name]:
                parameter.data = parameter.data.new_empty(self._shapes[name])
                self._flat = self._adam = parameter.grad = None

    def _accumulator(self) -> Tensor:
        """The flat gradient, (P,); each parameter's `grad` is a view into it, which autograd adds to in place."""
        if self._flat is None:
            kind = next(iter(self._parameters.values())).dtype
            self._flat = torch.zeros(sum(each.numel() for each in self._parameters.values()), dtype=kind)
            parts = torch.split(self._flat, [each.numel() for each in self._parameters.values()])
            for parameter, part in zip(self._parameters.values(), parts, strict=True):
                parameter.grad = part.view_as(parameter)
        return self._flat

    def _optimizer(self) -> Adam:
        if self._adam is None:
            # Under the names of files: experts apart, each a view, in the gradient's own order.
            parameters = apart({name: each.data for name, each in self._parameters.items()})
            self._adam = Adam(parameters, self._adam_settings)
        return self._adam

    def _refuse_spoilt(self) -> None:
        if self._spoilt:
            raise AccumulatorSpoilt("a micro-step broke half-way: zero() the accumulator and discard the contribution")


def file_state(model: nn.Module) -> tuple[dict[str, Tensor], set[str]]:
    """The state that a file holds, and the names that only repeat another one's tensor (tied embeddings)."""
    first: dict[int, str] = {}
    every = apart(model.state_dict())
    kept = {name: each for name, each in every.items() if first.setdefault(each.data_ptr(), name) == name}
    return kept, set(every) - set(kept)


def refuse_untrainable(config: Any, temperature: float) -> None:
    """What would train another distribution than the engine samples from: bent logits, layers that ignore the mask.

    Raises:
        ValueError: the temperature, or a model that is not full attention under one linear head.
    """
    if temperature <= 0.0:
        raise ValueError(f"temperature = {temperature}: training needs the rollout's, above 0")
    for field in ("attn_logit_softcapping", "final_logit_softcapping", "logits_scaling", "logit_scale"):
        value = getattr(config, field, None)
        if value not in (None, 1, 1.0):
            raise ValueError(f"{config.model_type}: {field} = {value}: trained are plain attention and a plain head")
    other = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if other or getattr(config, "sliding_window", None):
        found = f"layer_types {sorted(other)}, sliding_window = {getattr(config, 'sliding_window', None)}"
        raise ValueError(f"{config.model_type}: {found}: segments share rows only under full attention")
