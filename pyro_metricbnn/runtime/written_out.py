"""Torch's fused operations written out in plain ones, which vmap runs for all particles at once.

In: a block of code.  Out: the same values to rounding; recurrent layers step by step, attention as its formula.
vmap has no rule for the fused ones: it runs them particle by particle, or fails ("aten::stack"). Convolutions lose
the part of their kernels that sees padding alone, which is most of it where an image has shrunk to a pixel.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

State = tuple[Tensor, ...]  # (B, H) each: h, and c of an LSTM
Cell = Callable[[Tensor, State, Sequence[Tensor]], State]


@contextmanager
def written_out() -> Iterator[None]:
    """Attention and recurrent layers in plain operations; torch's switches are put back at the end.

    The switches are the process's: hold the turn (`in_turn`).
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # a TransformerEncoderLayer as one operation
    try:
        with sdpa_kernel(SDPBackend.MATH), _Plain():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Plain(TorchFunctionMode):
    """What nn.LSTM, nn.GRU and nn.RNN call, as a loop over time; what nn.Conv2d and its kin call, with less to do.

    Medians of 7 for 20 particles of an LSTM on one core, 20 steps of 16 units, 64 rows: 24 ms a gradient, 30 with a
    backward pass written by hand, 39 by vmap's own fallback, 145 particle after particle.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CONVOLUTIONS:
            return func(*_without_idle_entries(*args, **kwargs))
        if func in _STEPS:
            return _one_step(_STEPS[func], *args, **kwargs)
        if func not in _LAYERS:
            return func(*args, **kwargs)
        if _is_packed(args[1]):
            return _packed(func, *args, **kwargs)
        return _layers(_LAYERS[func], *args, **kwargs)


def _without_idle_entries(
    input: Tensor,  # the names are torch's: a network may pass it by name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...]:
    """The arguments of a convolution with smaller kernels, where parts of them see padding alone at all places.

    ResNet18's last convolution, 3 x 3, on the one pixel that is left of an image of 32 x 32: a gradient of four
    particles takes a third of the time.
    """
    num = weight.dim() - 2
    if isinstance(padding, str):
        return input, weight, bias, stride, padding, dilation, groups
    strides, paddings, dilations = (
        [of] * num if isinstance(of, int) else list(of) for of in (stride, padding, dilation)
    )
    strides, paddings, dilations = (of * num if len(of) == 1 else of for of in (strides, paddings, dilations))
    for i in range(num):
        length, kernel, step, before, apart = (
            input.shape[i - num],
            weight.shape[i + 2],
            strides[i],
            paddings[i],
            dilations[i],
        )
        places = range(-before, length + before - apart * (kernel - 1), step)
        used = [entry for entry in range(kernel) if any(0 <= place + entry * apart < length for place in places)]
        if not used or len(used) == kernel:
            continue
        first, count = used[0], used[-1] + 1 - used[0]
        left = before - first * apart
        if left < 0 or len(range(-left, length + left - apart * (count - 1), step)) != len(places):
            continue  # what is left would need other padding at its two ends
        weight, paddings[i] = weight.narrow(i + 2, first, count), left
    return input, weight, bias, strides, paddings, dilations, groups


def _is_packed(second: Any) -> bool:
    """Whether the second argument is how many sequences are left at each step, and not a state."""
    return isinstance(second, Tensor) and not second.is_floating_point()


def _packed(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's own for sequences of several lengths in one tensor; it reads memory that particles do not have."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        raise ValueError(
            "a recurrent layer gets packed sequences (pack_padded_sequence), which torch cannot differentiate for "
            "several particles. Pass it padded ones and take the output at each one's last step with torch.gather."
        ) from error


def _one_step(
    cell: Cell,
    x: Tensor,
    state: Tensor | Sequence[Tensor],
    of_input: Tensor,
    of_state: Tensor,
    bias: Tensor | None = None,
    state_bias: Tensor | None = None,
) -> Tensor | State:
    """What nn.LSTMCell and its kin call: the next state."""
    weights = [of_input, of_state, *(b for b in (bias, state_bias) if b is not None)]
    states = (state,) if isinstance(state, Tensor) else tuple(state)
    _, end = _one_layer(cell, x[None], states, weights, bias is not None, backwards=False)
    return end[0] if isinstance(state, Tensor) else end


def _layers(
    cell: Cell,
    x: Tensor,
    states: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """All layers and directions: the outputs (T, B, H), or (B, T, H), and the last states (L, B, H)."""
    states = (states,) if isinstance(states, Tensor) else tuple(states)
    num_directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * num_directions)
    x = x.transpose(0, 1) if batch_first else x
    ends: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(num_directions):
            number = len(ends)
            own = list(weights[number * each : (number + 1) * each])
            state = tuple(part[number] for part in states)
            output, end = _one_layer(cell, x, state, own, has_biases, backwards=direction == 1)
            outputs.append(output)
            ends.append(end)
        x = torch.cat(outputs, dim=-1) if bidirectional else outputs[0]
        if layer < num_layers - 1:
            x = F.dropout(x, dropout, train)
    x = x.transpose(0, 1) if batch_first else x
    return x, *(torch.stack(parts) for parts in zip(*ends, strict=True))


def _one_layer(
    cell: Cell, x: Tensor, state: State, weights: list[Tensor], has_biases: bool, *, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction: outputs (T, B, H) and the last state. The inputs of all steps are one product."""
    of_input, of_state, *rest = weights
    bias, state_bias = (rest.pop(0), rest.pop(0)) if has_biases else (None, None)
    if bias is not None and state_bias is not None and cell is not _gru:  # a GRU's own is inside its reset
        bias, state_bias = bias + state_bias, None
    steps = F.linear(x, of_input, bias).unbind(0)
    own = [of_state.t(), *([state_bias] if cell is _gru else rest)]
    outputs = []
    for step in reversed(steps) if backwards else steps:
        state = cell(step, state, own)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _lstm(step: Tensor, state: State, weights: Sequence[Tensor]) -> State:
    h, c = state
    enter, forget, new, leave = (step + h @ weights[0]).chunk(4, dim=-1)
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    h = leave.sigmoid() * c.tanh()
    return (h @ weights[1].t() if len(weights) > 1 else h), c  # projected, with proj_size


def _gru(step: Tensor, state: State, weights: Sequence[Any]) -> State:
    (h,), (of_state, bias) = state, weights
    carried = h @ of_state if bias is None else h @ of_state + bias
    (reset, keep, new), (own_reset, own_keep, own_new) = step.chunk(3, dim=-1), carried.chunk(3, dim=-1)
    new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (new + (keep + own_keep).sigmoid() * (h - new),)


def _tanh(step: Tensor, state: State, weights: Sequence[Tensor]) -> State:
    return ((step + state[0] @ weights[0]).tanh(),)


def _relu(step: Tensor, state: State, weights: Sequence[Tensor]) -> State:
    return ((step + state[0] @ weights[0]).relu(),)


_LAYERS: dict[Any, Cell] = {torch.lstm: _lstm, torch.gru: _gru, torch.rnn_tanh: _tanh, torch.rnn_relu: _relu}
_STEPS: dict[Any, Cell] = {
    torch.lstm_cell: _lstm,
    torch.gru_cell: _gru,
    torch.rnn_tanh_cell: _tanh,
    torch.rnn_relu_cell: _relu,
}
_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
