"""What a newcomer adds by one short file, from outside the package, without reading the rest of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_metricbnn import (
    BatchedPotential,
    DriftRefineKernel,
    Gaussian,
    MetricBNN,
    bayesianize,
    calibration,
    compare,
    to_arviz,
)
from pyro_metricbnn.energy import GradientEstimator, Minibatches, MinibatchPotential
from pyro_metricbnn.model import Likelihood, Prior
from pyro_metricbnn.predictions import PosteriorDraws, Source, source_of
from pyro_metricbnn.refiners import Ground, Particles, Refiner
from pyro_metricbnn.walk import loop

from .runs import X, Y, regression

# ------------------------------------------------------------------------- a refiner with state of its own


@dataclass(frozen=True, kw_only=True)
class HeavyBall(Refiner):
    """A step of the drift, then descent that remembers where it was going."""

    rate: float = 1e-4
    friction: float = 0.5

    def own(self, theta: Tensor) -> dict[str, Tensor]:
        return {"velocity": torch.zeros_like(theta)}

    def reach(self, ground: Ground) -> float:
        return 0.1

    def num_gradients(self, ground: Ground) -> int:
        return ground.num_steps

    def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
        velocity = (1 - self.friction) * particles.own["velocity"] - self.rate * particles.grad
        theta = particles.theta + 0.1 * particles.drift + velocity
        energy, grad = ground.potential.value_and_grad(theta)
        moved = replace(particles, theta=theta, energy=energy, grad=grad, own={"velocity": velocity})
        return moved, energy - particles.energy


def heavy_ball() -> DriftRefineKernel:
    return DriftRefineKernel(regression(), refiner=HeavyBall(), num_steps=8)


def test_a_refiner_with_state_of_its_own_walks() -> None:
    metric = MetricBNN(heavy_ball(), num_particles=3).run(X, Y, progress=False)
    assert metric.draw(4)["2.bias"].shape == (4, 1)
    assert repr(MetricBNN(heavy_ball())).startswith("MetricBNN(20 particles, HeavyBall()")


def test_a_refiners_own_state_comes_back_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(**where: Any) -> Tensor:
        pyro.set_rng_seed(1)
        start = regression().trained_params
        return heavy_ball().walk(X, Y, num_particles=3, map_params=start, progress=False, **where).thetas

    class Killed(Exception):
        pass

    def killed(*args: Any) -> Any:
        raise Killed

    whole, step, steps = walked(), loop.advance, []

    def advance(*args: Any) -> Any:
        steps.append(1)
        return killed() if len(steps) == 5 else step(*args)

    monkeypatch.setattr(loop, "advance", advance)
    where = {"checkpoint": tmp_path / "walk.safetensors", "checkpoint_every": 0.0}
    with pytest.raises(Killed):
        walked(**where)
    assert torch.equal(walked(**where), whole)


# --------------------------------------------------------------------------------- a gradient estimator


def control_variate(full: BatchedPotential, star: Tensor) -> GradientEstimator:
    """A batch's gradient, less its error at theta_star, where the full gradient is known (Baker et al. 2019)."""
    value_there, grad_there = full.value_and_grad(star[None])

    def estimate(batch: BatchedPotential, theta: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = batch.value_and_grad(theta)
        value_of_batch, grad_of_batch = batch.value_and_grad(star[None])
        return value - value_of_batch + value_there, grad - grad_of_batch + grad_there

    return estimate


def estimators() -> tuple[BatchedPotential, MinibatchPotential, BatchedPotential, Tensor]:
    model = regression()
    full, batches = BatchedPotential(model, X, Y), MinibatchPotential(model, Minibatches((X, Y), 10), 40)
    star = full.flatten(model.trained_params)
    return full, batches, batches.estimated_by(control_variate(full, star)), star


def test_a_gradient_estimator_evaluates_two_points_on_one_batch() -> None:
    full, _, estimated, star = estimators()
    torch.testing.assert_close(estimated.grad(star[None]), full.grad(star[None]))


def test_a_gradient_estimator_takes_the_place_of_the_batches_own() -> None:
    full, plain, estimated, star = estimators()
    near = star[None] + 0.01
    errors = [
        torch.stack([potential.grad(near) - full.grad(near) for _ in range(20)]).norm()
        for potential in (plain, estimated)
    ]
    assert float(errors[1]) < 0.2 * float(errors[0])


def test_a_walk_takes_a_gradient_estimator() -> None:
    _, batches, estimated, _ = estimators()
    kernel = DriftRefineKernel(batches.model, refiner="adam", num_steps=4)
    start = regression().trained_params
    walk = kernel.walk(potential=estimated, num_particles=2, map_params=start, progress=False)
    assert walk.in_batches
    assert walk.thetas.isfinite().all()


# -------------------------------------------------------------------------------------------- a prior


@dataclass(frozen=True)
class FanIn(Prior):
    """Normal, narrower where a unit has more inputs."""

    gain: float = 1.0

    def distribution(self, name: str, value: Tensor) -> Any:
        inputs = value[0].numel() if value.dim() > 1 else 1
        return dist.Normal(value.new_zeros(()), value.new_full((), self.gain * inputs**-0.5))


def test_a_prior_is_one_short_class() -> None:
    model = bayesianize(nn.Linear(4, 2), Gaussian(0.3), prior_scale=FanIn(3.0))
    torch.testing.assert_close(model.prior("weight").variance.sqrt(), torch.full((2, 4), 1.5))
    x = torch.randn(10, 4)
    walk = DriftRefineKernel(model, num_steps=4).walk(x, x[:, :2], num_particles=2, progress=False)
    assert walk.thetas.shape == (2, 5, 10)


# --------------------------------------------------------------------------------------- a likelihood


@dataclass(frozen=True)
class HeavyTailed(Likelihood):
    """Real observations with outliers."""

    scale: float = 0.3

    def distribution(self, f: Tensor, **parameters: Tensor) -> Any:
        return dist.StudentT(f.new_full((), 4.0), f, f.new_full((), self.scale)).to_event(f.dim() - 1)


def test_a_likelihood_is_one_short_class() -> None:
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    model = bayesianize(net, HeavyTailed())
    metric = MetricBNN(model, num_particles=3, num_steps=6, effort=0.1).run(X, Y, progress=False)
    prediction = metric.predict(X, 20)
    assert "HeavyTailed(scale=0.3)" in repr(prediction)
    figures = calibration(prediction, Y)
    assert torch.tensor(vars(figures)["coverage"]).isfinite().all()
    table = compare(model, {"MetricBNN": metric}, X, Y, num_samples=30, pictures=False).table
    assert table["train_nll"].notna().all()


# --------------------------------------------------------------------------------- a kind of posterior


class Bootstrap:
    """A posterior of somebody else's: functions that draw."""

    def __init__(self, draw: Callable[[int], dict[str, Tensor]]) -> None:
        self.draw = draw


class BootstrapSource(Source):
    """How its draws are read."""

    draws_anew = True

    def read(self, layout: Any, arguments: Any, num_samples: int | None) -> PosteriorDraws:
        return PosteriorDraws(values=self.given.draw(num_samples or 30))


def test_a_kind_of_posterior_for_compare_and_arviz_is_one_short_class(metric: MetricBNN) -> None:
    source_of.register(Bootstrap, BootstrapSource)
    given = Bootstrap(metric.draw)
    data = to_arviz(given, metric.model, X, Y)
    assert data["posterior"]["2.bias"].shape == (1, 30, 1)
    result = compare(metric.model, {"run": metric, "theirs": given}, X, Y, num_samples=40, pictures=False)
    assert result.posteriors["theirs"] == "Bootstrap: 40 draws"
