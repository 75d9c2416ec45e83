"""Claims about what does not depend on theta: it is computed once, and nothing else changes."""

import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

from pyro_metricbnn import BatchedPotential, Categorical, DriftRefineKernel, Gaussian, bayesianize, predict
from pyro_metricbnn.energy import Minibatches, MinibatchPotential, frozen_part
from tests.energies import assert_equal, particles

NUM_ROWS, SIZE = 22, 8
IMAGES = torch.randn(NUM_ROWS, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(NUM_ROWS) % 3


def stack() -> nn.Module:
    """Convolutions with all that is usual between them, as an operation in place."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.Tanh(),
        nn.Dropout(),
        nn.Linear(6, 3),
    )


class Skip(nn.Module):
    """The frozen part is read in three places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        low = self.first(x).tanh()
        high = low + self.second(low).tanh()
        high += low
        return self.head(torch.cat([low.mean((2, 3)), high.mean((2, 3))], 1))


class TwoInputs(nn.Module):
    """Images and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.numbers, self.head = stack(), nn.Linear(5, 4), nn.Linear(7, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.head(torch.cat([self.images(x), self.numbers(z).tanh()], 1))


class RoundedHead(nn.Module):
    """A gradient that the operations do not show: straight through a step function."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.gain = nn.Linear(64, 16), nn.Linear(16, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        f = self.head(self.body(x.flatten(1)).tanh())
        return self.gain(f + (f.round() - f).detach())


class Centred(nn.Module):
    """A row's features depend on the other rows of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x.flatten(1))
        return self.head(f - f.mean(0))


def model_of(net: nn.Module, *where: str) -> Any:
    torch.manual_seed(0)
    for value in net.parameters():
        nn.init.normal_(value, std=0.3)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
    return bayesianize(net.double(), Categorical(), where=where)


CUTS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "last layer": lambda: (model_of(stack(), "10"), (IMAGES, LABELS)),
    "dense layers": lambda: (model_of(stack(), "7", "10"), (IMAGES, LABELS)),
    "a convolution and the last layer": lambda: (model_of(stack(), "4", "10"), (IMAGES, LABELS)),
    "skip connections": lambda: (model_of(Skip(), "second", "head"), (IMAGES, LABELS)),
    "the last layer behind a skip": lambda: (model_of(Skip(), "head"), (IMAGES, LABELS)),
    "several inputs": lambda: (model_of(TwoInputs(), "numbers", "head"), ((IMAGES, IMAGES[:, 0, 0, :5]), LABELS)),
}


@contextmanager
def counted(*operations: Any) -> Iterator[list[Any]]:
    """Which of these operations run inside."""
    seen: list[Any] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in operations:
                seen.append(func)
            return func(*args, **(kwargs or {}))

    with Count():
        yield seen


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(IMAGES, LABELS), **{"batch_size": SIZE, "shuffle": True, **settings})


def is_cut(potential: BatchedPotential) -> bool:
    return potential._frozen is not None


@pytest.mark.parametrize("mode", ["trace", "loop"])
@pytest.mark.parametrize("name", CUTS)
def test_an_energy_with_its_frozen_part_kept_is_the_same(name: str, mode: str) -> None:
    model, data = CUTS[name]()
    whole = BatchedPotential(model, *data)
    cut, theta = whole.using(mode=mode), particles(whole.dim)
    assert is_cut(cut)
    for one, two in zip(cut.value_and_grad(theta), whole.value_and_grad(theta), strict=True):
        assert_equal(one, two)
    assert_equal(cut.value(theta), whole.value(theta))


def test_frozen_convolutions_are_not_run_again() -> None:
    model, data = CUTS["dense layers"]()
    whole = BatchedPotential(model, *data)
    cut, theta = whole.using(mode="trace"), particles(whole.dim)
    convolution = torch.ops.aten.convolution.default
    with counted(convolution) as of_the_cut:
        cut.value_and_grad(theta)
    with counted(convolution) as of_the_whole:
        whole.value_and_grad(theta)
    assert (len(of_the_cut), len(of_the_whole)) == (0, 2)


def test_a_network_that_walks_whole_is_left_as_it_is() -> None:
    model = bayesianize(stack().double(), Categorical())
    assert not is_cut(BatchedPotential(model, IMAGES, LABELS).using(mode="trace"))


def test_a_few_calls_are_not_worth_a_cut() -> None:
    model, data = CUTS["last layer"]()
    assert not is_cut(BatchedPotential(model, *data).using(expected_calls=5))


@pytest.mark.parametrize("name", [name for name in CUTS if name != "several inputs"])
@pytest.mark.parametrize("rows", ["numbers", "contents"])
def test_batches_with_a_frozen_part_kept_for_each_row_are_the_same(name: str, rows: str) -> None:
    model, data = CUTS[name]()
    batches = Minibatches(data, SIZE) if rows == "numbers" else loader()
    potential = MinibatchPotential(model, batches, NUM_ROWS).using(mode="trace", expected_calls=1000)
    assert is_cut(potential)
    theta = particles(potential.dim)
    for _ in range(7):  # more than two passes; those of the loader end with a batch of six rows
        value, grad = potential.value_and_grad(theta)
        plain = potential.fixed()
        plain._frozen = None
        assert_equal(value, plain.value_and_grad(theta)[0])
        assert_equal(grad, plain.value_and_grad(theta)[1])


@pytest.mark.parametrize("rows", ["numbers", "contents"])
def test_batches_do_not_run_frozen_convolutions(rows: str) -> None:
    model, data = CUTS["dense layers"]()
    batches = Minibatches(data, SIZE) if rows == "numbers" else loader(drop_last=True)
    potential = MinibatchPotential(model, batches, NUM_ROWS).using(mode="trace", expected_calls=1000)
    theta = particles(potential.dim)
    with counted(torch.ops.aten.convolution.default) as seen:
        for _ in range(5):
            potential.value_and_grad(theta)
    assert not seen


def test_a_frozen_part_that_does_not_fit_in_memory_is_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_part, "IN_MEMORY", 0)
    model, data = CUTS["dense layers"]()
    potential = MinibatchPotential(model, Minibatches(data, SIZE), NUM_ROWS).using(mode="trace", expected_calls=1000)
    value = potential.value_and_grad(particles(potential.dim))[0]
    plain = potential.fixed()
    plain._frozen = None
    assert is_cut(potential)
    assert_equal(value, plain.value_and_grad(particles(potential.dim))[0])


def test_a_full_disk_costs_the_time_and_not_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(frozen_part, "IN_MEMORY", 0)
    monkeypatch.setattr(frozen_part.os, "posix_fallocate", full)
    model, data = CUTS["dense layers"]()
    potential = MinibatchPotential(model, Minibatches(data, SIZE), NUM_ROWS).using(mode="trace", expected_calls=1000)
    assert not is_cut(potential)


def test_features_that_depend_on_the_batch_are_not_kept_for_rows() -> None:
    model = model_of(Centred(), "head")
    potential = MinibatchPotential(model, Minibatches((IMAGES, LABELS), SIZE), NUM_ROWS)
    potential = potential.using(mode="trace", expected_calls=1000)
    theta = particles(potential.dim)
    value = potential.value_and_grad(theta)[0]
    plain = potential.fixed()
    plain._frozen = None
    assert_equal(value, plain.value_and_grad(theta)[0])


def test_a_gradient_that_operations_do_not_show_is_kept() -> None:
    model = model_of(RoundedHead(), "head", "gain")
    whole = BatchedPotential(model, IMAGES, LABELS)
    theta = particles(whole.dim)
    assert_equal(whole.using(mode="trace").grad(theta), whole.grad(theta))


class Flipped(TensorDataset):
    """Augmented as it is read."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return (x.flip(-1) if torch.rand(()) < 0.5 else x), y


def test_a_loader_that_augments_is_noticed_and_said() -> None:
    model, data = CUTS["dense layers"]()
    batches = DataLoader(Flipped(*data), batch_size=SIZE)
    with pytest.warns(UserWarning, match="random transforms"):
        potential = MinibatchPotential(model, batches).using(mode="trace", expected_calls=1000)
    assert not is_cut(potential)


def test_reading_all_rows_leaves_the_generators_as_they_were() -> None:
    model, _ = CUTS["dense layers"]()
    potential = MinibatchPotential(model, loader())
    before = torch.get_rng_state()
    assert is_cut(potential.using(mode="trace", expected_calls=1000))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_row_that_was_not_there_is_computed() -> None:
    model, _ = CUTS["dense layers"]()
    potential = MinibatchPotential(model, loader(drop_last=True)).using(mode="trace", expected_calls=1000)
    theta, (args, kwargs) = particles(potential.dim), next(potential._stream)
    potential._take(((args[0] + 1.0, args[1]), kwargs))
    cut, plain = potential.fixed(), potential.fixed()
    plain._frozen = None
    assert_equal(cut.value_and_grad(theta)[0], plain.value_and_grad(theta)[0])


def test_data_that_are_changed_are_seen() -> None:
    model, (x, y) = CUTS["dense layers"]()
    x = x.clone()
    potential = BatchedPotential(model, x, y).using(mode="trace")
    theta = particles(potential.dim)
    potential.value_and_grad(theta)
    x.mul_(2.0)
    assert_equal(potential.value_and_grad(theta)[0], BatchedPotential(model, x, y).value(theta))


def test_other_data_of_the_same_shapes_are_cut_too() -> None:
    model, (x, y) = CUTS["dense layers"]()
    potential = BatchedPotential(model, x, y).using(mode="trace")
    theta = particles(potential.dim)
    assert_equal(potential.on(2 * x, y).value_and_grad(theta)[0], BatchedPotential(model, 2 * x, y).value(theta))


def test_a_temperature_divides_the_cut_energy_too() -> None:
    model, data = CUTS["dense layers"]()
    potential = BatchedPotential(model, *data).using(mode="trace")
    theta = particles(potential.dim)
    assert_equal(potential.at(4.0).using(mode="trace").value(theta), potential.value(theta) / 4)


def test_a_cut_energy_can_be_sent_to_another_process() -> None:
    model, data = CUTS["dense layers"]()
    potential = BatchedPotential(model, *data).using(mode="trace")
    theta = particles(potential.dim)
    assert_equal(pickle.loads(pickle.dumps(potential)).value(theta), potential.value(theta))


def test_a_kernel_matrix_of_a_pyro_models_data_is_decomposed_once() -> None:
    x = torch.linspace(0, 1, 400, dtype=torch.float64)[:, None].repeat(1, 250)

    def model(x: Tensor, y: Tensor) -> None:
        z = pyro.sample("z", dist.Normal(x.new_zeros(()), 1.0).expand([2]).to_event(1))
        kernel = torch.exp(-torch.cdist(x, x)) + 1e-3 * torch.eye(len(x), dtype=x.dtype)
        f = torch.linalg.cholesky(kernel)[:, :2] @ z
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(f, 1.0), obs=y)

    whole = BatchedPotential(model, x, torch.sin(x[:, 0]))
    cut, theta = whole.using(mode="trace"), particles(2)
    assert is_cut(cut)
    with counted(torch.ops.aten.linalg_cholesky_ex.default) as seen:
        assert_equal(cut.value_and_grad(theta)[0], whole.value(theta))
    assert len(seen) == 1  # of the whole one


def test_draws_share_the_frozen_part_of_a_prediction() -> None:
    model, (x, _) = CUTS["dense layers"]()
    samples = {name: torch.randn(30, *value.shape).double() for name, value in model.trained_params.items()}
    with counted(torch.ops.aten.convolution.default) as seen:
        predict(model, samples, x)
    assert len(seen) == 2


def test_a_walk_on_a_cut_energy_is_the_walk_on_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def walked() -> Tensor:
        model = bayesianize(
            nn.Sequential(nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, 1)).double(), Gaussian(0.5), where="2"
        )
        pyro.set_rng_seed(1)
        kernel = DriftRefineKernel(model, num_steps=3, mode="trace")
        y = IMAGES.flatten(1)[:, :1]
        return kernel.walk(IMAGES.flatten(1), y, num_particles=3, progress=False).thetas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        cut = walked()
        monkeypatch.setattr("pyro_metricbnn.energy.potential.frozen_part", lambda *_: None)
        torch.manual_seed(0)
        assert_equal(cut, walked())


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    """Of several lengths."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return IMAGES[i, 0, : 2 + i // SIZE], LABELS[i]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.reshape(-1, 8)).tanh().reshape(len(x), -1, 16).mean(1))


def padded(rows: Any) -> tuple[Tensor, Tensor]:
    return nn.utils.rnn.pad_sequence([x for x, _ in rows], batch_first=True), torch.stack([y for _, y in rows])


def test_batches_of_several_lengths_are_left_whole() -> None:
    batches = DataLoader(Sentences(), batch_size=SIZE, collate_fn=padded, drop_last=True)
    potential = MinibatchPotential(model_of(Reader(), "head"), batches).using(mode="trace", expected_calls=100)
    assert all(potential.value(particles(potential.dim)).isfinite().all() for _ in range(4))
    assert not is_cut(potential)


def test_a_dataset_that_gives_batches_is_left_whole() -> None:
    in_batches = BatchSampler(RandomSampler(range(NUM_ROWS)), SIZE, drop_last=True)
    batches = DataLoader(TensorDataset(IMAGES, LABELS), sampler=in_batches, batch_size=None)
    potential = MinibatchPotential(model_of(stack(), "10"), batches).using(mode="trace", expected_calls=100)
    assert potential.value(particles(potential.dim)).isfinite().all()
    assert not is_cut(potential)
