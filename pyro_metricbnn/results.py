"""What can be asked of a run: draws, predictions, diagnostics, ArviZ.

In: a walk and the latent map that was fitted to it.  Out: all that follows `run`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from pyro.infer.mcmc.util import diagnostics
from torch import Tensor

from .diagnostics.gain import Gain, gain
from .diagnostics.health import health
from .diagnostics.summary import print_summary
from .latent.guide import AutoMetric
from .latent.latent_map import LatentMap
from .latent.posterior import MetricPosterior
from .latent.tube import tube_of
from .model.sites import Model
from .predictions.arviz_export import to_arviz
from .predictions.prediction import Prediction, predict
from .runtime.arguments import check_count
from .runtime.randomness import own_numbers
from .tempering.choice import PriorScores, TemperatureScores
from .walk.kernel import DriftRefineKernel
from .walk.trajectories import Trajectories

NUM_VALIDATION_DRAWS = 500
NUMBERS_A_BATCH = 2**24  # of a stream of draws: 64 MB in single precision


class Results:
    """What a run found; `MetricBNN` is the run."""

    kernel: DriftRefineKernel
    tube_scale: float | None
    _tube: float | None = None  # of the spreads, where tube_scale is None
    _trajectories: Trajectories | None = None
    _guide: AutoMetric | None = None
    gain: Gain | None = None  # what the stages of the run predict on its validation rows, if it had any
    temperature_choice: TemperatureScores | None = None  # of temperature="auto": what was taken, and why
    prior_choice: PriorScores | None = None  # the same of prior_scale="auto"

    @property
    def model(self) -> Model:
        """The Pyro model."""
        return self.kernel.model

    @property
    def trajectories(self) -> Trajectories:
        """The record of the walk."""
        if self._trajectories is None:
            raise ValueError("nothing has been walked yet: call run(*args) with the model's data first.")
        return self._trajectories

    @property
    def guide(self) -> AutoMetric:
        """The posterior as a Pyro autoguide."""
        if self._guide is None:
            _ = self.trajectories  # says so where nothing has been walked
            raise ValueError("the walk is there, but its latent map has not been fitted to the end: call fit() first.")
        return self._guide

    @property
    def posterior(self) -> MetricPosterior:
        """The distribution of theta."""
        return self.guide.posterior

    @property
    def latent_map(self) -> LatentMap:
        """The fitted latent space."""
        return self.posterior.latent_map

    @property
    def map_params(self) -> dict[str, Tensor]:
        """The MAP by site, constrained."""
        return self.trajectories.sites.unflatten(self.trajectories.theta_star.to(self.trajectories.sites.dtype))

    def _gained(self, rows: tuple[Any, Any] | None) -> tuple[str, ...]:
        """Set what the stages of the run predict on validation rows; what is to be said of it."""
        if rows is None:
            return ()
        with own_numbers(self.trajectories.sites.device):
            draws = self.draw(NUM_VALIDATION_DRAWS)
            self.gain = gain(self.model, self.trajectories, draws, *rows)  # type: ignore[arg-type]
        return tuple(self.gain.warnings)

    def _built(self, trajectories: Trajectories, latent_map: LatentMap, tube: float | None = None) -> Self:
        """Itself, with the posterior and the guide of a fitted map, whose tube is that part of the spreads wide."""
        width: float | Tensor | None = self.tube_scale
        self._tube = tube
        if width is None:
            self._tube = tube_of(trajectories, latent_map) if tube is None else tube
            width = (self._tube * latent_map.spreads).clamp_min(1e-12)
        posterior = MetricPosterior(latent_map, width)
        args, kwargs = trajectories.arguments
        self._guide = AutoMetric(self.model, posterior, trajectories.sites, args, kwargs)
        self._trajectories = trajectories
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the guide, which Pyro would send without its model, and is made again."""
        return {**vars(self), "_guide": None if self._guide is None else self.latent_map}

    def __setstate__(self, state: dict[str, Any]) -> None:
        latent_map = state["_guide"]
        vars(self).update({**state, "_guide": None})
        if latent_map is not None:
            self._built(self.trajectories, latent_map, self._tube)

    def get_samples(self, group_by_chain: bool = False) -> dict[str, Tensor]:
        """The walk's own points by site, as Pyro's MCMC gives them: (N T, ...) or (N, T, ...)."""
        return self.trajectories.samples(group_by_chain)

    def draw(self, num_samples: int, *, num_refinements: int = 0) -> dict[str, Tensor]:
        """New draws from the latent posterior by site, constrained: (S, ...).

        With `num_refinements` the kernel takes each draw nearer to the fiber by so many gradients.
        """
        check_count("num_samples", num_samples, "it counts draws.")
        return next(self.stream(num_samples, batch_size=num_samples, num_refinements=num_refinements))

    def stream(
        self, num_samples: int, *, batch_size: int | None = None, num_refinements: int = 0
    ) -> Iterator[dict[str, Tensor]]:
        """New draws like those of `draw`, in batches, for more of them than memory holds.

        At most three batches are there at a time, the caller's own included, if the caller does not keep them.

        Args:
            num_samples: S, of all batches together.
            batch_size: Draws in a batch, the last may have fewer; None for about 16 million numbers.
            num_refinements: As in `draw`.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
            >>> sum(draws["weight"].sum(0) for draws in metric.stream(1000, batch_size=300)).shape
            torch.Size([1, 2])
        """
        check_count("num_samples", num_samples, "it counts draws.")
        check_count("num_refinements", num_refinements, "it counts gradients a draw.", least=0)
        check_count("batch_size", batch_size, "it counts draws.", or_none=True)
        sites = self.trajectories.sites
        size = batch_size or max(1, NUMBERS_A_BATCH // sites.dim)
        sizes = (min(size, num_samples - start) for start in range(0, num_samples, size))
        if num_refinements == 0:
            return (self.guide.sample_posterior(count) for count in sizes)
        refine = partial(self.kernel.relax, self.trajectories, num_refinements=num_refinements)
        refined = MetricPosterior(self.latent_map, self.posterior.tube_scale, refine)
        return (sites.unflatten(refined.sample(torch.Size((count,)))) for count in sizes)

    def predict(
        self, x: Any, num_samples: int = 200, *, num_refinements: int = 0, chunk_size: int | None = None
    ) -> Prediction:
        """What the latent posterior predicts at x, for all draws at once.

        Where each of several ranks has kept its own walks, all of them have to call it. Each draws its part, and all
        get the prediction of all draws.
        """
        share = self.trajectories.share
        with share.own_part(num_samples, self.trajectories.sites.device) as own:
            samples = self.draw(own, num_refinements=num_refinements)
        prediction = predict(self.model, samples, x, chunk_size=chunk_size)  # type: ignore[arg-type]
        if not share.is_apart:
            return prediction
        parameters = {name: share.all_draws(value, num_samples) for name, value in prediction.parameters.items()}
        return replace(prediction, f=share.all_draws(prediction.f, num_samples), parameters=parameters)

    def diagnostics(self) -> dict[str, Any]:
        """R-hat and effective sample size of each site, as Pyro's MCMC gives them, and the walk's health."""
        result = diagnostics(self.trajectories.samples(group_by_chain=True), group_by_chain=True)
        state = health(self)
        result |= {"frozen": list(state.frozen), "warnings": list(state.warnings)}
        return {**result, "drift survived": state.drift_survived, "energy error": state.energy_error}

    def summary(self, prob: float = 0.9) -> None:
        """Print a table of the walk's samples: a network by site and by function values, others as Pyro's MCMC does."""
        print_summary(self.model, self.trajectories, prob)

    def to_arviz(self, *args: Any, num_samples: int | None = None, **settings: Any) -> Any:
        """The posterior for ArviZ: the walk's points, a chain for each particle, or draws of the latent posterior.

        Args:
            *args: The model's arguments, observations included; by default those of `run`.
            num_samples: Take so many draws of the latent posterior, as four chains, or as many as divide it; None takes
                the walk's own points.
            **settings: What to put in (`log_likelihood`, `posterior_predictive`, `prior`, `coords`, `chunk_size`: see
                the function `to_arviz`), and the model's keyword arguments.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
            >>> metric.to_arviz()["posterior"]["bias"].shape
            (4, 10, 1)
            >>> metric.to_arviz(num_samples=200, posterior_predictive=False)["log_likelihood"]["obs"].shape
            (4, 50, 20)
        """
        return to_arviz(self, self.model, *args, num_samples=num_samples, **settings)
