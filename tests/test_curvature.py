"""Claims about curvature from differences of gradients."""

import torch

from pyro_metricbnn import BatchedPotential
from pyro_metricbnn.energy.prior_units import hessian, hessian_times
from tests.targets import gaussian, ill_conditioned_covariance


def test_the_hessian_of_a_gaussian_is_its_precision() -> None:
    covariance = ill_conditioned_covariance(7, 100.0)
    potential = BatchedPotential(gaussian(covariance))
    seen = hessian(potential, torch.randn(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64), at_once=3)
    torch.testing.assert_close(seen, torch.linalg.inv(covariance), atol=1e-5, rtol=1e-5)


def test_units_scale_rows_and_columns() -> None:
    covariance = ill_conditioned_covariance(5, 10.0)
    potential = BatchedPotential(gaussian(covariance))
    scale = torch.linspace(0.1, 2, 5, dtype=torch.float64)
    seen = hessian(potential, torch.zeros(5, dtype=torch.float64), scale, at_once=5)
    torch.testing.assert_close(seen, scale[:, None] * torch.linalg.inv(covariance) * scale, atol=1e-5, rtol=1e-5)


def test_a_product_is_a_column_of_the_hessian() -> None:
    potential = BatchedPotential(gaussian(torch.diag(torch.tensor([0.5, 4.0], dtype=torch.float64))))
    zeros, ones = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    seen = hessian_times(potential, zeros, ones, torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(seen, torch.tensor([[0.0, 0.25]], dtype=torch.float64), atol=1e-6, rtol=1e-6)
