"""Claims about the refiners: what a step does, and what the steps sample."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from pyro_metricbnn import Adam, BatchedPotential, Descent, DriftRefineKernel, Steer
from pyro_metricbnn.refiners import steer
from pyro_metricbnn.refiners.dynamics import steered_step, turn
from pyro_metricbnn.refiners.refiner import Refiner
from pyro_metricbnn.refiners.state import Ground, Particles
from pyro_metricbnn.refiners.step_size import StepSize
from tests.targets import SCHOOLS_SIGMA, SCHOOLS_Y, eight_schools, gaussian, ill_conditioned_covariance, linear_gaussian


def ground_of(model: Callable[[], None], dim: int, num_particles: int = 4, num_steps: int = 10) -> Ground:
    theta_star = torch.zeros(dim, dtype=torch.float64)
    return Ground(BatchedPotential(model), theta_star, torch.ones_like(theta_star), num_steps, num_particles)


def start(ground: Ground, theta: Tensor | None = None) -> Particles:
    """Particles at the MAP, or at theta, without padding."""
    theta = ground.theta_star.expand(ground.num_particles, -1) if theta is None else theta
    return replace(Descent().start(ground, theta), own={"padding": theta.new_zeros(len(theta), 0)})


def standard(dim: int) -> Callable[[], None]:
    return gaussian(torch.eye(dim, dtype=torch.float64))


# ------------------------------------------------------------------------------------------ turning


@pytest.mark.parametrize("length", [1e-3, 0.3, 5.0])
def test_turning_follows_its_formula(length: float) -> None:
    u, grad = torch.randn(6, 9, dtype=torch.float64), 3 * torch.randn(6, 9, dtype=torch.float64)
    u = u / u.norm(dim=-1, keepdim=True)
    e, delta = -grad / grad.norm(dim=-1, keepdim=True), length * grad.norm(dim=-1, keepdim=True) / 8
    along = (e * u).sum(-1, keepdim=True)
    scale = torch.cosh(delta) + along * torch.sinh(delta)
    expected = (u + e * (torch.sinh(delta) + along * (torch.cosh(delta) - 1))) / scale
    turned, kinetic = turn(u, grad, length)
    torch.testing.assert_close(turned, expected)
    torch.testing.assert_close(kinetic, scale.log())


def test_a_huge_gradient_turns_the_drift_straight_down_without_overflow() -> None:
    u, grad = torch.eye(4, dtype=torch.float32)[:1], torch.tensor([[1e15, 1e15, 0.0, 0.0]])
    turned, kinetic = turn(u, grad, 1.0)
    torch.testing.assert_close(turned, -torch.tensor([[0.5, 0.5, 0.0, 0.0]]).sqrt())
    assert kinetic.isfinite().all()


def test_without_a_gradient_the_drift_goes_straight_on() -> None:
    u = torch.eye(5)[:2]
    turned, kinetic = turn(u, torch.zeros_like(u), 0.5)
    assert torch.equal(turned, u)
    assert not kinetic.any()


def test_a_step_moves_by_its_length_whatever_the_gradient() -> None:
    ground = ground_of(standard(6), 6)
    p = start(ground)
    state = (p.theta, p.drift, p.energy, p.grad, p.own["padding"])
    theta, *_ = steered_step(ground.potential.value_and_grad, *state, None, ground.scale, 0.7, 0.0)
    torch.testing.assert_close((theta - p.theta).norm(dim=-1), torch.full((4,), 0.7, dtype=torch.float64))


def test_the_energy_error_falls_with_the_third_power_of_the_step() -> None:
    ground = ground_of(gaussian(torch.diag(torch.linspace(0.2, 2, 8, dtype=torch.float64))), 8, num_particles=50)
    steer = Steer(step_size=1.0, decoherence=math.inf)
    _, p = steer.approach(ground, start(ground))
    state = (p.theta, p.drift, p.energy, p.grad, p.own["padding"])

    def error(eps: float) -> float:
        *_, value = steered_step(ground.potential.value_and_grad, *state, None, ground.scale, eps, 0.0)
        return float(value.abs().median())

    assert error(0.1) / error(0.05) == pytest.approx(8, rel=0.15)


def test_with_the_noise_off_blackjax_walks_the_same_path() -> None:
    blackjax = pytest.importorskip("blackjax", reason="needs the extra blackjax")
    import jax
    import numpy as np
    from blackjax.mcmc.integrators import IntegratorState, isokinetic_velocity_verlet

    variances = torch.logspace(-1, 1, 12, dtype=torch.float64)
    ground = ground_of(gaussian(torch.diag(variances)), 12, num_particles=1)
    p = start(ground)
    state: Any = (p.theta, p.drift, p.energy, p.grad, p.own["padding"])
    with jax.enable_x64(True):

        def log_density(x: "jax.Array") -> "jax.Array":
            return -0.5 * (x**2 / variances.numpy()).sum()

        step = jax.jit(isokinetic_velocity_verlet(log_density, 1.0), static_argnums=1)
        position, drift = (jax.numpy.asarray(part[0].numpy()) for part in (p.theta, p.drift))
        peer = IntegratorState(position, drift, *jax.value_and_grad(log_density)(position))
        for _ in range(100):
            inputs: Any = (*state, None, ground.scale, 0.31, 0.0)
            *state, _error = steered_step(ground.potential.value_and_grad, *inputs)
            peer, _ = step(peer, 0.31)
            np.testing.assert_allclose(state[0][0].numpy(), np.asarray(peer.position), rtol=0, atol=1e-11)
            np.testing.assert_allclose(state[1][0].numpy(), np.asarray(peer.momentum), rtol=0, atol=1e-11)
    assert blackjax.__version__


# ------------------------------------------------------------------------------- what it samples


def errors_off(samples: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """How many Monte-Carlo errors the mean and the variance of samples (N, T, ...) are off.

    The particles are independent, so the spread of their averages is the error.
    """

    def off(averages: Tensor, truth: Tensor) -> Tensor:
        return (averages.mean(0) - truth).abs() / (averages.std(0) / len(averages) ** 0.5)

    return off(samples.mean(1), mean), off(((samples - mean) ** 2).mean(1), std**2)


@pytest.mark.slow
def test_steering_samples_an_ill_conditioned_gaussian() -> None:
    covariance = ill_conditioned_covariance(dim=50, condition=1e4)
    variances, vectors = torch.linalg.eigh(covariance)
    mean = torch.linspace(-3, 3, 50, dtype=torch.float64)
    kernel = DriftRefineKernel(linear_gaussian(covariance, mean), refiner=Steer(error=1e-7, path=100), num_steps=200)
    samples = kernel.walk(num_particles=40, progress=False).samples(group_by_chain=True)["x"]
    for name, points, truth, std in (
        ("coordinates", samples, mean, covariance.diagonal().sqrt()),
        ("principal axes", samples @ vectors, mean @ vectors, variances.sqrt()),
    ):
        mean_off, variance_off = errors_off(points, truth, std)
        assert mean_off.max() < 4.5, name
        assert variance_off.max() < 4.5, name


@pytest.mark.slow
def test_steering_agrees_with_nuts_on_eight_schools() -> None:
    kernel = DriftRefineKernel(eight_schools, refiner=Steer(effort=6, path=100), num_steps=400)
    ours = kernel.walk(SCHOOLS_Y, SCHOOLS_SIGMA, num_particles=40, progress=False).samples(group_by_chain=True)
    nuts = MCMC(NUTS(eight_schools), num_samples=3000, warmup_steps=500, disable_progbar=True)
    nuts.run(SCHOOLS_Y, SCHOOLS_SIGMA)
    theirs = nuts.get_samples(group_by_chain=True)
    for name in ("mu", "tau", "eta"):
        a, b = (samples[name].log() if name == "tau" else samples[name] for samples in (ours, theirs))
        mean, std = b.flatten(0, 1).mean(0), b.flatten(0, 1).std(0)
        size = effective_sample_size(b, 0, 1)
        for ours_of, nuts_of, nuts_error in (
            (a.mean(1), mean, std / size.sqrt()),
            (((a - mean) ** 2).mean(1), std**2, ((b - mean) ** 2).flatten(0, 1).std(0) / size.sqrt()),
        ):
            error = (ours_of.var(0) / len(ours_of) + nuts_error**2).sqrt()
            assert ((ours_of.mean(0) - nuts_of).abs() < 4 * error).all(), name


def test_one_dimension_works() -> None:
    def model() -> None:
        pyro.sample("x", dist.Normal(torch.tensor(2.0, dtype=torch.float64), 0.7))

    kernel = DriftRefineKernel(model, refiner=Steer(effort=4, path=60), num_steps=400)
    samples = kernel.walk(num_particles=40, progress=False).samples()["x"]
    assert float(samples.mean()) == pytest.approx(2.0, abs=0.04)
    assert float(samples.std()) == pytest.approx(0.7, abs=0.04)


def test_wide_priors_do_not_make_the_walk_long() -> None:
    x = torch.randn(100, dtype=torch.float64)

    def model(scale: float) -> None:
        mean = pyro.sample("mean", dist.Normal(x.new_zeros(()), scale))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=x)

    for scale in (1.0, 1e4):
        samples = DriftRefineKernel(model).walk(scale, progress=False).samples()["mean"]
        assert float(samples.std()) == pytest.approx(0.1, rel=0.2)


# -------------------------------------------------------------------------------------- pulling back


def test_drift_directions_are_uniform_on_the_sphere() -> None:
    drift = start(ground_of(standard(3), 3, num_particles=20_000)).drift
    torch.testing.assert_close(drift.norm(dim=-1), torch.ones(20_000, dtype=torch.float64))
    torch.testing.assert_close(drift.mean(0), torch.zeros(3, dtype=torch.float64), atol=0.02, rtol=0)
    first = drift[:, 0].sort().values  # a coordinate of a uniform direction in 3 dimensions is uniform (Archimedes)
    torch.testing.assert_close(first, torch.linspace(-1, 1, 20_000, dtype=torch.float64), atol=0.03, rtol=0)


def test_the_approach_widens_units_that_the_curvature_at_the_map_makes_too_narrow() -> None:
    steer, dim = Steer(), 10
    ground = ground_of(standard(dim), dim, num_particles=20, num_steps=100)
    ground.measured["posterior_scale"] = torch.full((dim,), 0.05, dtype=torch.float64)
    after, _ = steer.approach(ground, start(ground))
    assert float(after.posterior_scale.mean()) > 0.5
    assert (after.posterior_scale <= ground.scale).all()


def test_units_are_never_narrowed_by_the_approach() -> None:
    ground = ground_of(standard(10), 10, num_particles=20, num_steps=100)
    after, _ = Steer().approach(ground, start(ground))
    assert (after.posterior_scale >= ground.posterior_scale).all()


def test_descent_is_the_papers_update() -> None:
    ground = ground_of(standard(5), 5)
    p = start(ground)
    moved, _ = Descent(alpha=0.1, num_refinements=3, eta=0.2).advance(ground, p)
    torch.testing.assert_close(moved.theta, 0.8**3 * (p.theta + 0.1 * p.drift))


def test_descent_on_the_mean_loss_divides_by_the_number_of_observations() -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)

    potential = BatchedPotential(model, torch.ones(8, dtype=torch.float64))
    ground = Ground(potential, torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), 5, 3)
    theta = torch.randn(3, 1, dtype=torch.float64)
    refined = Descent(num_refinements=1, eta=0.4, mean_loss=True).refine(ground, theta)
    torch.testing.assert_close(refined, theta - 0.4 / 8 * potential.grad(theta))


def test_relaxing_by_descent_takes_points_down_and_by_steering_to_the_energies_of_the_posterior() -> None:
    ground = ground_of(standard(100), 100, num_particles=16)
    far = 3 * torch.randn(16, 100, dtype=torch.float64)
    cold = Adam(lr=0.1).relax(ground, far, 200)
    warm = Steer().relax(ground, far, 200)
    assert (ground.potential.value(cold) < ground.potential.value(far)).all()
    assert float(warm.pow(2).mean()) == pytest.approx(1.0, abs=0.3)


def test_refining_lowers_the_potential_of_every_particle() -> None:
    ground = ground_of(gaussian(ill_conditioned_covariance(10, 100.0)), 10, num_particles=16)
    p = start(ground)
    for refiner in (Descent(alpha=0.5, eta=0.01), Adam(alpha=0.5, lr=0.01)):
        drifted = ground.potential.value(p.theta + 0.5 * p.drift)
        moved, _ = refiner.advance(ground, p)
        assert (moved.energy < drifted).all()


def test_the_default_drift_adds_up_to_the_priors_typical_radius() -> None:
    ground = ground_of(standard(25), 25, num_steps=50)
    assert Adam().reach(ground) * 50 == pytest.approx(5.0)
    assert Descent(alpha=0.1).reach(ground) == 0.1


def test_a_walk_goes_twice_as_far_where_its_gradients_are_few_and_no_further_where_they_are_many() -> None:
    soft, stiff = (ground_of(gaussian(v * torch.eye(400, dtype=torch.float64)), 400) for v in (1.0, 1e-5))
    assert Steer().num_gradients(soft) < 800 < Steer().num_gradients(stiff)
    assert [Steer().length(ground) for ground in (soft, stiff)] == pytest.approx([12 * 20, 6 * 20])
    assert Steer(effort=4.0).length(soft) == pytest.approx(2 * 12 * 20)
    assert Steer(path=3.0).length(soft) == pytest.approx(3 * 20)


def test_a_large_network_does_not_walk_further_than_six_radii() -> None:
    scale = torch.ones(200_000)
    ground = Ground(BatchedPotential(standard(2)), torch.zeros_like(scale), scale, 10, 4)
    ground.measured["curvature"] = 1000.0  # 200,000 coordinates would take long to look at
    assert Steer().length(ground) == pytest.approx(6 * 200_000**0.5)


def test_no_plan_jumps_from_one_size_to_the_next() -> None:
    def plan(dim: int) -> list[float]:
        ground = Ground(BatchedPotential(standard(2)), torch.zeros(dim), torch.ones(dim), 100, 4)
        ground.measured.update(curvature=1000.0, posterior_scale=ground.scale)
        steer, work = Steer(), 1.6e5  # gradients that a large model may take at the least
        length, approach = steer.length(ground), steer.approach_length(ground)
        steps = [math.log(steer.step.least(ground)), math.log(steer.step.largest(ground))]
        return [math.log(length), approach / length, *steps, work / steer._most_gradients(ground)]

    plans = torch.tensor([plan(dim) for dim in range(140, 420)])
    assert float(plans.diff(dim=0).abs().max()) < 0.05
    assert float((plans[-1] - plans[0]).abs().min()) > 0.15


def test_a_walk_on_a_sharp_energy_ends_before_it_takes_no_end_of_gradients() -> None:
    ground = ground_of(gaussian(1e-9 * torch.eye(400, dtype=torch.float64)), 400)
    assert Steer().num_gradients(ground) == 160_000
    assert Steer().stride(ground, 1e-5) == pytest.approx(160_000 / ground.num_steps * 1e-5)
    assert Steer(effort=4.0).stride(ground, 1e-5) == pytest.approx(4 * Steer().stride(ground, 1e-5))
    for asked in (Steer(path=6.0), Steer(step_size=1e-5)):  # who asks for a path or a step gets all of it
        assert asked.stride(ground, 1e-5) == asked.reach(ground)


def behind_a_wall(dim: int) -> Callable[[], None]:
    """A standard normal that gets a thousand times as sharp at a radius of 5."""

    def model() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(dim, dtype=torch.float64), 1.0).to_event(1))
        pyro.factor("wall", -500 * (x.norm() - 5).clamp_min(0) ** 2)

    return model


@pytest.fixture
def leaving() -> tuple[Ground, Particles]:
    """Twenty particles with a step that is right where they are and far too long behind the wall."""
    pyro.set_rng_seed(0)
    ground = ground_of(behind_a_wall(300), 300, num_particles=20)
    theta = 1e-3 * torch.randn(20, 300, dtype=torch.float64)  # the norm has no gradient at 0
    return ground, replace(start(ground, theta), step_size=8.0)


def test_a_step_that_throws_particles_off_is_walked_again_with_smaller_ones(
    leaving: tuple[Ground, Particles], monkeypatch: pytest.MonkeyPatch
) -> None:
    again, error = Steer().advance(*leaving)
    assert Steer().step.heat(*leaving, error**2) <= 1
    monkeypatch.setattr(steer, "MOST_RETRIES", 0)
    once, error = Steer().advance(*leaving)
    assert Steer().step.heat(*leaving, error**2) > 10
    assert again.step_size < once.step_size / 2
    assert again.num_gradients > 2 * once.num_gradients  # those that were for nothing count, too
    assert again.path == once.path


def test_particles_that_stand_frozen_change_neither_the_step_nor_the_heat(leaving: tuple[Ground, Particles]) -> None:
    ground, particles = leaving
    sound = torch.full((20,), 0.1, dtype=torch.float64)
    broken = torch.where(torch.arange(20) < 5, math.nan, sound)
    frozen = replace(particles, alive=torch.arange(20) >= 5)
    assert Steer().step.heat(ground, frozen, broken**2) == pytest.approx(Steer().step.heat(ground, particles, sound**2))
    assert Steer().step.tuned(ground, frozen, broken) == pytest.approx(Steer().step.tuned(ground, particles, sound))


def test_a_live_particle_whose_energy_is_not_finite_is_too_hot(leaving: tuple[Ground, Particles]) -> None:
    ground, particles = leaving
    error = torch.full((20,), 0.1, dtype=torch.float64)
    error[7] = math.nan
    assert Steer().step.heat(ground, particles, error**2) == math.inf


def test_a_step_is_not_halved_for_an_error_that_does_not_come_from_it(
    leaving: tuple[Ground, Particles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepSize, "heat", lambda *_: 3.0)
    moved, _ = Steer().advance(*leaving)
    assert moved.num_gradients <= 3 * math.ceil(Steer().reach(leaving[0]) / 8.0)


def test_a_fourth_refiner_is_one_short_class() -> None:
    @dataclass(frozen=True)
    class Straight(Refiner):
        def reach(self, ground: Ground) -> float:
            return 0.1

        def num_gradients(self, ground: Ground) -> int:
            return ground.num_steps

        def advance(self, ground: Ground, particles: Particles) -> tuple[Particles, Tensor]:
            theta = particles.theta + 0.1 * particles.drift
            energy, grad = ground.potential.value_and_grad(theta)
            return replace(particles, theta=theta, energy=energy, grad=grad), energy - particles.energy

    walk = DriftRefineKernel(standard(4), refiner=Straight(), num_steps=10).walk(num_particles=3, progress=False)
    torch.testing.assert_close(walk.drift_survived, torch.ones(3, 10, dtype=torch.float64))
    torch.testing.assert_close(walk.thetas[:, -1].norm(dim=-1), torch.ones(3, dtype=torch.float64), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Steer(effort=0), "effort must be positive"),
        (lambda: Steer(path=-1), "path must be positive"),
        (lambda: Steer(step_size=0), "None lets the walk find it"),
        (lambda: Steer(warmup=1), "warmup is a part of the path"),
        (lambda: Descent(alpha=0), "alpha must be positive"),
        (lambda: Adam(num_refinements=-1), "must not be negative"),
        (lambda: DriftRefineKernel(standard(2), refiner="newton"), "'steer', 'anneal', 'langevin', 'descent', 'adam'"),
    ],
)
def test_a_wrong_knob_is_refused_in_words(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()
