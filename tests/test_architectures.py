"""Claims about kinds of networks: recurrent, attention, residual, image patches, graphs. All weights of each."""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

from pyro_metricbnn import BatchedPotential, Categorical, MetricBNN, bayesianize, predict
from pyro_metricbnn.graphs import execution
from pyro_metricbnn.runtime.progress import progress_bar, stage
from pyro_metricbnn.runtime.written_out import written_out

NUM_ROWS, NUM_CLASSES, LENGTH, HIDDEN = 12, 3, 5, 4


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **settings: Any) -> None:
        super().__init__()
        self.layers = kind(2, HIDDEN, batch_first=True, **settings)
        self.head = nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


class Encoder(nn.Module):
    """Attention over a sequence, or over patches of an image with a class token, as in a vision transformer."""

    def __init__(self, entry: nn.Module, num_layers: int = 1) -> None:
        super().__init__()
        self.entry = entry
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, HIDDEN))
        layer = nn.TransformerEncoderLayer(HIDDEN, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.entry(x)
        return self.head(self.encoder(torch.cat([self.token.expand(len(x), -1, -1), entered], dim=1))[:, 0])


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, HIDDEN, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x).flatten(2).transpose(1, 2)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
        self.head = nn.Linear(3, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        return self.head((x + self.block(x)).mean((2, 3)))


class GraphConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, HIDDEN), nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ self.second(torch.relu(adjacency @ self.first(x)))


@dataclass(frozen=True)
class Case:
    net: Callable[[], nn.Module]
    x: Callable[[], Any]


def sequences() -> Tensor:
    return torch.randn(NUM_ROWS, LENGTH, 2)


def images() -> Tensor:
    return torch.randn(NUM_ROWS, 1, 4, 4)


def linked() -> tuple[Tensor, Tensor]:
    return torch.randn(NUM_ROWS, 2), torch.rand(NUM_ROWS, NUM_ROWS).softmax(1)


CASES = {
    "lstm": Case(lambda: Recurrent(nn.LSTM), sequences),
    "gru": Case(lambda: Recurrent(nn.GRU), sequences),
    "transformer": Case(lambda: Encoder(nn.Linear(2, HIDDEN)), sequences),
    "residual": Case(Residual, images),
    "patches": Case(lambda: Encoder(Patches()), images),
    "graph": Case(GraphConvolution, linked),
}
every_network = pytest.mark.parametrize("name", CASES)
SLOW = ("gru", "residual", "patches")  # the others' runs take seconds
every_run = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
fused = pytest.mark.parametrize("name", ["lstm", "gru", "transformer", "patches"])


def network(name: str) -> tuple[Any, Any, Tensor]:
    """A model of the network, its inputs and classes."""
    pyro.set_rng_seed(0)
    case = CASES[name]
    model = bayesianize(case.net(), Categorical())
    return model, case.x(), torch.randint(0, NUM_CLASSES, (NUM_ROWS,))


def particles(potential: BatchedPotential, model: Any, count: int = 3) -> Tensor:
    theta = potential.flatten(model.trained_params)
    return theta + 0.1 * torch.randn(count, len(theta))


@cache
def run_of(name: str) -> MetricBNN:
    model, x, y = network(name)
    return MetricBNN(model, num_particles=3, num_steps=6).run(x, y, progress=False, max_iterations=20)


# --------------------------------------------------------------------------------------------- the energy


@every_network
@pytest.mark.parametrize("mode", ["vmap", "trace"])
def test_the_energy_and_gradient_are_those_of_pyro_for_one_particle(name: str, mode: str) -> None:
    model, x, y = network(name)
    potential = BatchedPotential(model.double(), tree_double(x), y).using(mode=mode)
    theta = particles(potential, model)
    value, grad = potential.value_and_grad(theta)
    pyros = initialize_model(model, (tree_double(x), y))[1]
    for number, one in enumerate(theta):
        point = one.clone().requires_grad_()
        energy = pyros(potential.sites.unconstrained(point))
        assert torch.allclose(value[number], energy)
        assert torch.allclose(grad[number], torch.autograd.grad(energy, point)[0], atol=1e-8)


def tree_double(x: Any) -> Any:
    return tuple(part.double() for part in x) if isinstance(x, tuple) else x.double()


@fused
def test_no_operation_of_the_energy_runs_particle_by_particle_inside_torch(name: str) -> None:
    model, x, y = network(name)
    potential = BatchedPotential(model, x, y)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop.*")
        potential.using(mode="vmap").grad(particles(potential, model))


RECURRENT = {
    "two layers, both ways": lambda kind: kind(3, HIDDEN, num_layers=2, bidirectional=True),
    "without biases": lambda kind: kind(3, HIDDEN, bias=False),
    "batch first": lambda kind: kind(3, HIDDEN, batch_first=True, bidirectional=True),
}


@pytest.mark.parametrize("settings", RECURRENT)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_written_out_gives_what_torchs_own_gives(kind: Any, settings: str) -> None:
    assert_written_out_is_the_same(RECURRENT[settings](kind), torch.randn(LENGTH, 2, 3))


def test_an_lstm_with_projections_written_out_gives_what_torchs_own_gives() -> None:
    assert_written_out_is_the_same(nn.LSTM(3, HIDDEN, num_layers=2, proj_size=2), torch.randn(LENGTH, 2, 3))


def test_a_relu_recurrent_layer_written_out_gives_what_torchs_own_gives() -> None:
    assert_written_out_is_the_same(nn.RNN(3, HIDDEN, nonlinearity="relu"), torch.randn(LENGTH, 3))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_a_recurrent_cell_written_out_gives_what_torchs_own_gives(kind: Any, bias: bool) -> None:
    assert_written_out_is_the_same(kind(3, HIDDEN, bias=bias), torch.randn(2, 3))


def assert_written_out_is_the_same(net: nn.Module, x: Tensor) -> None:
    """Alone and under vmap."""
    net, x = net.double().eval(), x.double()
    weights = {name: value.detach().expand(2, *value.shape) for name, value in net.named_parameters()}
    own = tree_leaves(net(x))
    with written_out():
        alone = tree_leaves(net(x))
        batched = tree_leaves(vmap(lambda w: functional_call(net, w, (x,)))(weights))
    for expected, one, many in zip(own, alone, batched, strict=True):
        assert torch.allclose(one, expected)
        assert torch.allclose(many[1], expected)


class Packed(nn.Module):
    """Sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(2, HIDDEN, batch_first=True), nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.arange(len(x)) % LENGTH + 1
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.layers(packed)[1][0][-1])


def test_packed_sequences_are_refused_with_what_to_do() -> None:
    model = bayesianize(Packed(), Categorical())
    potential = BatchedPotential(model, sequences(), torch.zeros(NUM_ROWS, dtype=torch.long))
    with pytest.raises(ValueError, match=r"pack_padded_sequence.*torch\.gather"):
        potential.grad(particles(potential, model))


class Squared(torch.autograd.Function):
    """An operation that vmap does not know."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


class WithSquares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.head = nn.Linear(2, HIDDEN), nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Squared.apply(self.entry(x)))


def test_what_vmap_cannot_run_goes_particle_after_particle_which_is_said_once() -> None:
    model = bayesianize(WithSquares(), Categorical())
    potential = BatchedPotential(model, torch.randn(NUM_ROWS, 2), torch.zeros(NUM_ROWS, dtype=torch.long))
    theta = particles(potential, model)
    with pytest.warns(UserWarning, match=r"one after another.*vmap cannot run"):
        grad = potential.using(mode="trace").grad(theta)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.allclose(potential.value(theta), potential.using(mode="auto").value_and_grad(theta)[0])
    assert torch.allclose(grad, potential.using(mode="loop").grad(theta), atol=1e-5)


# ------------------------------------------------------------------------------------------------ a run


@every_run
def test_a_run_ends_with_finite_energies(name: str) -> None:
    assert bool(run_of(name).trajectories.energies.isfinite().all())


@every_run
def test_predicted_probabilities_have_a_row_for_each_input_and_sum_to_one(name: str) -> None:
    x = network(name)[1]
    probs = run_of(name).predict(x, num_samples=5).probs
    assert probs.shape == (NUM_ROWS, NUM_CLASSES)
    assert torch.allclose(probs.sum(-1), torch.ones(NUM_ROWS))


@every_network
def test_predictions_are_the_networks_own_for_each_draw(name: str) -> None:
    model, x, _ = network(name)
    draws = {site: value.expand(2, *value.shape) for site, value in model.trained_params.items()}
    with torch.no_grad():
        expected = model.net(*x) if isinstance(x, tuple) else model.net(x)
    assert torch.allclose(predict(model, draws, x).f[1], expected, atol=1e-5)


@every_run
def test_pyros_predictive_takes_the_guide(name: str) -> None:
    model, x, _ = network(name)
    assert Predictive(model, guide=run_of(name).guide, num_samples=2)(x)["obs"].shape == (2, NUM_ROWS)


@every_run
def test_a_run_goes_to_arviz(name: str) -> None:
    exported: Any = run_of(name).to_arviz(num_samples=4)
    assert exported.log_likelihood["obs"].shape[-1] == NUM_ROWS


# ------------------------------------------------------------------------------------- torch's own switches


def switches() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    of_attention = (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled())
    return torch.backends.mha.get_fastpath_enabled(), *of_attention


@fused
def test_energies_and_predictions_leave_torchs_switches_as_they_were(name: str) -> None:
    before = switches()
    model, x, y = network(name)
    potential = BatchedPotential(model, x, y)
    potential.using(mode="trace").grad(particles(potential, model))
    predict(model, {site: value[None] for site, value in model.trained_params.items()}, x)
    assert switches() == before


@pytest.mark.parametrize("fast", [True, False])
def test_the_switches_are_put_back_after_an_error(fast: bool) -> None:
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        before = switches()
        with pytest.raises(ValueError, match="mine"), written_out():
            raise ValueError("mine")
        assert switches() == before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


# --------------------------------------------------------------------------------------------- the stages


def test_the_bar_names_tracing_and_compiling(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(execution.torch, "compile", lambda fn, **_: fn)
    model, x, y = network("graph")
    MetricBNN(model, num_particles=3, num_steps=6, compile=True).run(x, y, max_iterations=20)
    said = capsys.readouterr().err
    assert "approach: tracing" in said
    assert "approach: compiling" in said


def test_without_progress_nothing_is_printed(capsys: Any) -> None:
    model, x, y = network("graph")
    MetricBNN(model, num_particles=3, num_steps=6).run(x, y, progress=False, max_iterations=20)
    assert capsys.readouterr() == ("", "")


def test_a_bar_says_again_what_it_said_before_the_stage() -> None:
    with progress_bar(desc="walk", file=io.StringIO()) as bar:
        with stage("compiling"):
            assert bar.desc == "walk: compiling"
        assert bar.desc == "walk"
