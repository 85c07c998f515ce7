"""Rows through the stages of a cell's replica, each a micro-batch, by `schedule`'s 1F1B. Imports megatron."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor, distributed, nn

from gyre.trainers.batches import RowTensors
from gyre.trainers.megatron import schedule
from gyre.trainers.megatron.context import hidden
from gyre.trainers.megatron.grid import Grid, Place
from gyre.trainers.megatron.recompute import Recompute
from gyre.trainers.megatron.routing import Chosen, Routing
from gyre.trainers.megatron.schedule import Exchange, Step
from gyre.trainers.megatron.sharing import made_up
from gyre.trainers.megatron.work import Work

_FAR = -1e9
_ANY_SHAPE = [1, 1, 1]  # each tensor is announced with its own


@dataclass(slots=True)
class _Taken:
    """A row that went forward, or is about to."""

    row: RowTensors
    work: Work
    tokens: int
    """Of the longest of the rows that ranks take side by side."""
    chosen: tuple[Chosen, ...] = ()
    """Of the layers that are computed again."""


class Pipeline:
    """This rank's stage in it. All ranks call the same methods with the same rows.

    Args:
        model: the stage.
        vocabulary: logits beyond it count for nothing.
        temperature: the rollout's, above 0.
        routing: of the stage's routers.
    """

    def __init__(self, model: nn.Module, vocabulary: int, temperature: float, routing: Routing) -> None:
        self._model, self._vocabulary, self._temperature = model, vocabulary, temperature
        self._routing = routing
        self._device = next(model.parameters()).device
        self._stage = parallel_state.get_pipeline_model_parallel_rank()
        self._stages = parallel_state.get_pipeline_model_parallel_world_size()
        self._links = P2PCommunicator(parallel_state.get_pipeline_model_parallel_group(), model.config)
        self._turns = 0
        self._recompute: Recompute | None = None
        self.drop()

    def limit(self, activation_bytes: int, grid: Grid, place: Place, *, sequence: bool) -> None:
        """Have layers keep at most so much of the rows that are here at a time; all ranks call this together."""
        rows = self._stages - self._stage
        probe = partial(self._probe, grid, place, sequence)
        self._recompute = Recompute(self._model, activation_bytes / rows, probe)

    def turn(self, row: RowTensors, work: Work, tokens: int) -> Iterator[Work]:
        """Take a row in, its micro-step's next; those that are through with it at this stage.

        Args:
            row: this rank's.
            work: of its micro-step.
            tokens: of the longest of the rows that ranks take side by side.
        """
        self._rows[self._turns] = _Taken(row, work, tokens)
        steps = schedule.turn(self._stage, self._stages, self._turns)
        self._turns += 1
        yield from self._train(steps)

    def drain(self) -> Iterator[Work]:
        """Take back what is in the pipeline; those that are through with it at this stage."""
        rows, self._turns = self._turns, 0
        if rows:
            yield from self._train(schedule.drain(self._stage, self._stages, rows))

    def drop(self) -> None:
        """Forget what is in the pipeline. Between turns nothing is under way, so nobody has to be told."""
        self._turns = 0
        self._rows: dict[int, _Taken] = {}
        self._inputs: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}  # of outputs
        self._owed: dict[int, Tensor] = {}  # gradients of inputs

    @torch.no_grad()
    def measure(self, rows: list[RowTensors], work: Work) -> bool:
        """Take rows through forward only, past what the pipeline holds; whether all was finite, at every rank."""
        for place, row in enumerate(rows):
            index = -1 - place  # none of a turn
            for step in schedule.crossing(self._stage, self._stages, index):
                if isinstance(step, Exchange):
                    self._exchange(step)
                elif self._last:
                    work.measure(self._log_probs(self._measured(row, index), row), row)
                else:
                    self._outputs[index] = self._measured(row, index)
            self._outputs.pop(index, None)
        flag = torch.tensor([float(work.spoilt)], device=self._device)
        distributed.all_reduce(flag)
        return not flag.item()

    def _measured(self, row: RowTensors, index: int) -> Tensor:
        with self._routing.of(row):
            return self._forward(row, self._inputs.pop(index, None))

    def _train(self, steps: Iterable[Step]) -> Iterator[Work]:
        for step in steps:
            if isinstance(step, Exchange):
                self._exchange(step)
            elif step.way == "forward":
                self._outputs[step.row] = self._kept(self._rows[step.row], self._inputs.get(step.row))
            else:
                yield from self._backward(step.row)

    @property
    def _last(self) -> bool:
        return bool(self._stage == self._stages - 1)

    def _kept(self, taken: _Taken, given: Tensor | None) -> Tensor:
        """What goes to the next stage, or the row's loss; with what its way back needs."""
        again = 0 if self._recompute is None else self._recompute.prepare(taken.tokens)
        with self._routing.of(taken.row, taken.work.agreement) as chosen:
            output = self._forward(taken.row, given)
        taken.chosen = tuple(chosen[:again])
        return taken.work.loss(self._log_probs(output, taken.row), taken.row) if self._last else output

    def _forward(self, row: RowTensors, given: Tensor | None) -> Tensor:
        """(T, 1, H) for the next stage, or logits (1, T, V / tensor) at the last one; `given` is (T, 1, H) too."""
        self._model.set_input_tensor(given)  # type: ignore[operator]
        output: Tensor = self._model(*(each.to(self._device) for each in (row.ids, row.positions, _mask(row))))
        return output

    def _probe(self, grid: Grid, place: Place, sequence: bool, tokens: int) -> Tensor:
        """A made-up row through the stage, as training takes it."""
        row, given = made_up(tokens, grid, place, sequence=sequence), None
        if self._stage:
            width: int = self._model.config.hidden_size  # type: ignore[assignment, union-attr]
            here = row.ids.numel() // (grid.tensor if sequence else 1)
            given = torch.zeros(here, 1, width, device=self._device, requires_grad=True)
        return self._forward(row, given)

    def _backward(self, index: int) -> Iterator[Work]:
        """Add a row to the accumulator; its micro-step, if this was the last of its rows."""
        taken = self._rows.pop(index)
        with self._routing.again(taken.chosen):
            torch.autograd.backward(self._outputs.pop(index), self._gradients.pop(index, None))
        given = self._inputs.pop(index, None)
        if given is not None and given.grad is not None:
            self._owed[index] = given.grad.contiguous()
        if taken.work.came_back():
            yield taken.work

    def _exchange(self, step: Exchange) -> None:
        came = self._with_the_one_before(step) if step.neighbour < 0 else self._with_the_one_behind(step)
        if came is not None and step.receives is not None:
            (self._inputs if step.neighbour < 0 else self._gradients)[step.receives] = came

    def _with_the_one_before(self, step: Exchange) -> Tensor | None:
        links, came = self._links, None
        gradient = None if step.sends is None else self._owed.pop(step.sends)
        if step.receives is None:
            links.send_backward(gradient, is_first_stage=False)
        elif gradient is None:
            came = links.recv_forward(_ANY_SHAPE, is_first_stage=False)
        else:
            came = links.send_backward_recv_forward(gradient, _ANY_SHAPE, is_first_stage=False)
        return came

    def _with_the_one_behind(self, step: Exchange) -> Tensor | None:
        links, came = self._links, None
        output = None if step.sends is None else self._outputs[step.sends]
        if step.receives is None:
            links.send_forward(output, is_last_stage=False)
        elif output is None:
            came = links.recv_backward(_ANY_SHAPE, is_last_stage=False)
        else:
            came = links.send_forward_recv_backward(output, _ANY_SHAPE, is_last_stage=False)
        return came

    def _log_probs(self, logits: Tensor, row: RowTensors) -> Tensor:
        """(U,) float64 on the CPU: log pi of each target at the rollout's temperature, nats; logits (1, T, V / T)."""
        sources, tokens, distinct = (each.to(logits.device) for each in (row.sources, row.tokens, row.distinct))
        context = logits[0, sources].float() / self._temperature  # (D, V / T)
        first = parallel_state.get_tensor_model_parallel_rank() * context.shape[1]
        beyond = torch.arange(first, first + context.shape[1], device=context.device) >= self._vocabulary
        lost: Tensor = vocab_parallel_cross_entropy(context.masked_fill(beyond, _FAR)[:, None], tokens[:, None])
        return -lost[:, 0][distinct].double().cpu()


def _mask(row: RowTensors) -> Tensor:
    """(1, 1, t, T), True where a place is not seen."""
    return (hidden(row.positions[0]) if row.unseen is None else row.unseen)[None, None]
