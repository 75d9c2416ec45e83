"""The posterior as a Pyro autoguide.

In: a model, its arguments and a distribution of theta.  Out: `AutoMetric`, for Predictive, ELBOs and replay.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Tensor
from torch.distributions import Distribution

from ..model.sites import Sites
from ..model.structure import Model
from ..runtime.arguments import check_count, check_part, check_type
from ..runtime.threads import in_turn

NUM_DRAWS = 2000  # for the quantiles of a posterior that is not made of curves


class AutoMetric(AutoContinuous):
    """A guide whose unconstrained latent vector comes from a fitted posterior; it has nothing to train.

    Sites come out constrained and in their plates. `median` and `quantiles` need no arguments. It stays in the
    precision and on the device that it was walked in; what keeps it is `MetricBNN.save`, not `state_dict`.

    Args:
        model: The Pyro model.
        posterior: A distribution of theta, such as `MetricPosterior`.
        sites: Where each latent site is in theta.
        args: The model's arguments, observations included: they show its structure.
        kwargs: Its keyword arguments.

    Example:
        >>> guide = AutoMetric(model, MetricPosterior(KernelMap().fit(walk)), walk.sites, (x, y), {})
        >>> guide.median()["bias"].shape
        torch.Size([1])
    """

    def __init__(
        self, model: Model, posterior: TorchDistribution, sites: Sites, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        check_type("posterior", posterior, Distribution, "a distribution of theta, as MetricPosterior is")
        check_type("sites", sites, Sites, "the sites of the model, as trajectories.sites are")
        if posterior.event_shape != (sites.dim,):
            shape = tuple(posterior.event_shape)
            raise ValueError(
                f"the posterior is of {shape} coordinates, the sites have {sites.dim}: pass those of one walk."
            )
        super().__init__(model, init_loc_fn=init_to_uniform)
        self.posterior, self.sites = posterior, sites
        with in_turn():
            self._setup_prototype(*args, **kwargs)
        here = {name: tuple(node["value"].shape) for name, node in self.prototype_trace.iter_stochastic_nodes()}
        there = {site.name: tuple(site.shape) for site in sites.sites}
        if here != there:
            raise ValueError(
                f"the sites are of another model: they are {there}, the model's {here}. Pass its own walk's."
            )

    def __getstate__(self) -> Any:
        kept = {name: getattr(self, name) for name in ("_model", "master")}
        state = super().__getstate__()  # drops them from the live guide too
        self.__dict__.update(kept)
        return state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `double`, `cuda` and the like come to: the record stays as and where it was walked."""
        here = torch.empty(0, dtype=self.sites.dtype, device=self.sites.device)
        there = fn(here)
        if there.dtype != here.dtype:
            advice = f"run on data and a network in {there.dtype}, or change what it draws: value.to({there.dtype})"
            raise ValueError(f"a guide cannot go from {here.dtype} to {there.dtype}, it was walked in that: {advice}.")
        if there.device != here.device:
            advice = f"metric.save(path), then MetricBNN.load(path, model, device={str(there.device)!r})"
            raise ValueError(f"a guide cannot go from {here.device} to {there.device}, its record stays: {advice}.")
        return super()._apply(fn, recurse)

    def state_dict(self, *args: Any, keep_vars: bool = False, **kwargs: Any) -> Any:
        if not keep_vars:  # tracers ask for live tensors, of which there are none, and save nothing
            why = "a guide has no parameters, so its state_dict would be empty and the posterior lost"
            raise ValueError(f"{why}: metric.save(path) keeps it, MetricBNN.load(path, model).guide gives it back.")
        return super().state_dict(*args, keep_vars=keep_vars, **kwargs)

    def get_posterior(self, *args: Any, **kwargs: Any) -> TorchDistribution:
        return self.posterior

    def sample_posterior(self, num_samples: int = 1) -> dict[str, Tensor]:
        """Independent draws by site, constrained: (S, *site shape)."""
        check_count("num_samples", num_samples, "it counts draws.")
        with torch.no_grad():
            return self.sites.unflatten(self.posterior.sample(torch.Size((num_samples,))))

    @torch.no_grad()
    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.quantiles([0.5]).items()}

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Quantiles of each unconstrained coordinate, taken to the support: (Q, *site shape) by site."""
        for level in quantiles:
            check_part("a quantile's level", level, "it is a probability.")
        knots = getattr(self.posterior, "knots", None)
        points = self.posterior.sample(torch.Size((NUM_DRAWS,))) if knots is None else knots.flatten(0, 1)
        levels = torch.as_tensor(quantiles, device=points.device, dtype=points.dtype)
        theta = torch.cat([columns.quantile(levels, dim=0) for columns in points.split(64, dim=1)], dim=1)
        return self.sites.unflatten(theta)
