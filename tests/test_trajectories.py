"""Claims about the record of a walk."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pyro_metricbnn import DriftRefineKernel, Gaussian, Trajectories, bayesianize


@pytest.fixture(scope="module")
def walk() -> Trajectories:
    torch.manual_seed(0)
    x = torch.randn(15, 2)
    model = bayesianize(nn.Linear(2, 1), Gaussian(0.5))
    return DriftRefineKernel(model, num_steps=12).walk(x, x.sum(-1, keepdim=True), num_particles=3, progress=False)


def test_the_record_has_a_row_a_particle_and_the_map_first(walk: Trajectories) -> None:
    assert walk.thetas.shape == (3, 13, 3)
    assert torch.equal(walk.thetas[:, 0], walk.theta_star.expand(3, 3))
    assert walk.energies.shape == (3, 13)
    assert walk.energy_errors.shape == walk.drift_survived.shape == (3, 12)


def test_samples_are_the_points_after_the_map_by_site(walk: Trajectories) -> None:
    samples = walk.samples()
    assert samples["weight"].shape == (36, 1, 2)
    assert torch.equal(samples["weight"].view(3, 12, 2), walk.thetas[:, 1:, :2])


def test_grouped_samples_have_a_dimension_of_particles(walk: Trajectories) -> None:
    samples = walk.samples(group_by_chain=True)
    assert samples["bias"].shape == (3, 12, 1)
    assert torch.equal(samples["bias"].flatten(0, 1), walk.samples()["bias"])


def test_frozen_points_are_left_out_of_the_samples(walk: Trajectories) -> None:
    frozen = replace(walk, frozen_at=torch.tensor([13, 5, 13]))
    assert frozen.samples()["bias"].shape == (12 + 4 + 12, 1)
    assert frozen.samples(group_by_chain=True)["bias"].shape == (2, 12, 1)


def test_thinning_keeps_the_map_and_every_third_point(walk: Trajectories) -> None:
    thin = walk.thinned(3)
    assert torch.equal(thin.thetas, walk.thetas[:, [0, 3, 6, 9, 12]])
    assert torch.equal(thin.energies, walk.energies[:, [0, 3, 6, 9, 12]])
    assert thin.spacing == pytest.approx(3 * walk.spacing)
    assert torch.equal(thin.paths, walk.paths[2::3])
    assert torch.equal(thin.gradients, walk.gradients[2::3])


def test_thinning_keeps_what_was_frozen_frozen(walk: Trajectories) -> None:
    frozen = replace(walk, frozen_at=torch.tensor([13, 5, 1]))
    assert frozen.thinned(3).is_good.tolist() == [[True] * 4, [True, False, False, False], [False] * 4]


def test_half_precision_halves_the_record_and_samples_keep_the_models_dtype(walk: Trajectories) -> None:
    half = replace(walk, thetas=walk.thetas.half())
    assert half.thetas.element_size() == 2
    assert half.samples()["weight"].dtype == torch.float32
    torch.testing.assert_close(half.samples()["weight"], walk.samples()["weight"], atol=2e-3, rtol=2e-3)
