"""The sampling and ensembling baselines of the benchmarks."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor

from benchmarks.datasets import Problem
from benchmarks.differentiable import differentiable
from benchmarks.methods import ensemble, espro, hmc, nuts, sgld, swag
from benchmarks.task import Task, trained
from pyro_metricbnn import BatchedPotential, Categorical, Gaussian

NOISE = 0.5
FILES = ("ensemble", "hmc", "nuts", "sgld", "espro", "swag")
PACKAGES = {"sgld": "posteriors", "mile": "bde"}


@pytest.fixture(autouse=True)
def _short_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmc, "MOST_STEPS", 15)
    monkeypatch.setattr(nuts, "DEPTH", 4)


@cache
def linear_task() -> Task:
    """Regression without a hidden layer: its posterior is a Gaussian in closed form."""
    pyro.set_rng_seed(0)
    x = torch.randn(64, 2)
    y = x @ torch.tensor([[1.0], [-0.5]]) + 0.3 + NOISE * torch.randn(64, 1)
    return trained(Problem("linear", x, y, x, y), Gaussian(NOISE), hidden=())


def exact(task: Task) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (weights, bias) of the linear task."""
    inputs = torch.cat([task.problem.x, torch.ones(len(task.problem.x), 1)], 1)
    covariance = torch.linalg.inv(inputs.T @ inputs / NOISE**2 + torch.eye(3) / task.prior_scale**2)
    return covariance @ inputs.T @ task.problem.y[:, 0] / NOISE**2, covariance


def assert_posterior(draws: Tensor, task: Task) -> None:
    """Means to a third of a deviation, deviations to a quarter.

    Four draws of ten count for a deviation, so 400 know it to 6 per cent, a fourth of what is allowed.
    """
    mean, covariance = exact(task)
    deviation = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean) / deviation).abs().max() < 0.33
    assert (draws.std(0) / deviation - 1).abs().max() < 0.25


def small_task(kind: str) -> Task:
    """A network of 8 units with a hundredth of the work."""
    x = torch.randn(50, 3)
    if kind == "classes":
        y = x.argmax(-1)
        return trained(Problem(kind, x, y, x, y, x, y), Categorical(), hidden=(8,), share=0.01)
    y = x.sum(-1, keepdim=True).sin()
    return trained(Problem(kind, x, y, x, y, x, y), Gaussian(0.3), hidden=(8,), share=0.01)


def test_the_differentiable_energy_has_the_gradient_of_autograd() -> None:
    task = small_task("classes")
    theta = torch.randn(2, task.potential(1).dim)
    energy = differentiable(task.potential(100), theta)
    expected = BatchedPotential(task.model, task.problem.x, task.problem.y).using(mode="vmap").grad(theta)
    assert torch.allclose(torch.func.grad(lambda points: energy(points).sum())(theta), expected, atol=1e-4)


def test_the_energy_differentiated_inside_torch_func_follows_theta() -> None:
    task = small_task("classes")
    theta = torch.randn(2, task.potential(1).dim)
    energy = differentiable(task.potential(100), theta)
    first, second = (torch.func.grad(lambda points: energy(points).sum())(scale * theta) for scale in (1.0, 2.0))
    assert (first - second).abs().max() > 0.1


@pytest.mark.slow
def test_pyros_hmc_draws_have_the_exact_moments_of_a_linear_model() -> None:
    task = linear_task()
    assert_posterior(hmc.pyro_chain(task, 40, 400), task)


def test_draws_of_chains_at_once_have_the_exact_moments_of_a_linear_model() -> None:
    task = linear_task()
    assert_posterior(hmc.chains(task, 8, 60, 60), task)


@pytest.mark.slow
def test_nuts_draws_have_the_exact_moments_of_a_linear_model() -> None:
    task = linear_task()
    assert_posterior(nuts.chain(task, 40, 400), task)


def test_sgld_draws_have_the_exact_moments_of_a_linear_model() -> None:
    pytest.importorskip("posteriors")
    task = linear_task()
    draws = sgld.chains(task, 3e-4, num_chains=32, num_steps=600, num_draws=1600, batch_size=64)
    assert_posterior(draws, task)


def test_minibatch_gradients_of_an_epoch_average_to_that_of_all_data() -> None:
    task = linear_task()
    theta = torch.randn(1, 3)
    potential = sgld.minibatches(task, 10, batch_size=16)
    for _ in range(3):  # the rest of the pass whose first batch went into finding the sites
        potential.grad(theta)
    epoch = torch.stack([potential.grad(theta) for _ in range(4)])
    assert torch.allclose(epoch.mean(0), task.potential(1).grad(theta), rtol=1e-3)


def test_swag_moments_are_those_of_its_points() -> None:
    seen, thetas = swag.Moments(rank=5), torch.randn(30, 4)
    for theta in thetas:
        seen.add(theta)
    assert torch.allclose(seen.mean, thetas.mean(0), atol=1e-6)
    assert torch.allclose(seen.variance, thetas.var(0, correction=0), atol=1e-5)
    running = torch.stack([thetas[: i + 1].mean(0) for i in range(25, 30)])
    assert torch.allclose(seen.deviations, thetas[25:] - running, atol=1e-5)


def test_swag_draws_have_half_the_diagonal_and_half_the_low_rank_covariance() -> None:
    seen = swag.Moments(rank=5)
    for theta in torch.randn(30, 4):
        seen.add(theta)
    low_rank = seen.deviations.T @ seen.deviations / 4
    expected = (seen.variance.diag() + low_rank) / 2
    assert torch.allclose(seen.draw(200_000).T.cov(), expected, atol=0.02)


def test_points_of_a_simplex_are_convex_combinations_of_its_vertices() -> None:
    vertices = torch.randn(4, 7)
    inside, weights = espro.points(vertices, 100)
    assert bool((weights >= 0).all())
    assert torch.allclose(weights.sum(-1), torch.ones(100), atol=1e-6)
    assert torch.allclose(inside, weights @ vertices, atol=1e-5)


def test_points_of_a_simplex_are_uniform() -> None:
    weights = espro.points(torch.eye(3), 100_000)[1]
    assert torch.allclose(weights.var(0), torch.full((3,), 1 / 18), rtol=0.03)  # of a flat Dirichlet


def test_the_volume_of_a_simplex_is_that_of_its_cayley_menger_determinant() -> None:
    vertices = torch.randn(4, 9, dtype=torch.float64)
    bordered = torch.ones(5, 5, dtype=torch.float64)
    bordered[0, 0] = 0
    bordered[1:, 1:] = torch.cdist(vertices, vertices) ** 2
    squared = bordered.det() / (2**3 * math.factorial(3) ** 2)
    assert torch.allclose(espro.log_volume(vertices), squared.log() / 2)


def test_the_climb_of_a_vertex_is_the_gradient_of_the_logarithm_of_the_volume() -> None:
    vertices = torch.randn(4, 9, dtype=torch.float64)
    expected = torch.func.grad(espro.log_volume)(vertices)[-1]
    up = espro.height(vertices[:-1], vertices[-1])
    assert torch.allclose(up / up.pow(2).sum(), expected)


def test_the_simplex_grows_with_lambda() -> None:
    task = replace(small_task("regression"), share=1.0)
    volumes = []
    for weight in (0.0, 1000.0):
        pyro.set_rng_seed(1)
        volumes.append(float(espro.log_volume(espro.simplex(task, weight, 3, 400))))
    assert volumes[1] > volumes[0]


def test_the_first_vertex_of_the_simplex_stays_the_map() -> None:
    task = small_task("regression")
    assert torch.equal(espro.simplex(task, 10.0, 3, 20)[0], task.theta_star)


def test_members_of_an_ensemble_differ() -> None:
    task = small_task("regression")
    f = ensemble.fit(replace(task, share=0.2))(task.problem.x_test).f
    assert torch.pdist(f.flatten(1)).min() > 0.1


def test_each_member_of_an_ensemble_is_at_a_stationary_point_of_its_own() -> None:
    task = linear_task()
    f = ensemble.fit(replace(task, share=1.0))(task.problem.x_test).f
    mean, _ = exact(task)
    expected = task.problem.x_test @ mean[:2, None] + mean[2]
    assert torch.allclose(f, expected.expand_as(f), atol=1e-3)


@pytest.mark.parametrize("kind", ["classes", "regression"])
@pytest.mark.parametrize("file", [*FILES, pytest.param("mile", marks=pytest.mark.slow)])
def test_every_method_gives_finite_outputs_of_each_draw(file: str, kind: str) -> None:
    if file in PACKAGES:
        pytest.importorskip(PACKAGES[file])
    task, methods = small_task(kind), importlib.import_module(f"benchmarks.methods.{file}").METHODS
    for method in (one for one in methods if one.only in (None, kind)):
        setting: dict[str, Any] = dict(method.settings[0])
        prediction = method.fit(task, **setting)(task.problem.x_test)
        learns_noise = file == "mile" or method.name.endswith("heteroscedastic")
        num_outputs = 3 if kind == "classes" else 2 if learns_noise else 1
        assert prediction.f.shape[1:] == (50, num_outputs)
        assert len(prediction.f) > 1
        assert bool(prediction.f.isfinite().all())
        assert bool(prediction.log_prob(task.problem.y_test).isfinite().all())


@pytest.mark.parametrize("file", FILES)
def test_the_same_seed_gives_the_same_draws(file: str) -> None:
    if file in PACKAGES:
        pytest.importorskip(PACKAGES[file])
    task, (method, *_) = small_task("classes"), importlib.import_module(f"benchmarks.methods.{file}").METHODS
    outputs = []
    for _ in range(2):
        pyro.set_rng_seed(3)
        outputs.append(method.fit(task, **method.settings[0])(task.problem.x_test).f)
    assert torch.equal(*outputs)
