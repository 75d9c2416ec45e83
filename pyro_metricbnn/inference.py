"""The front door: MAP -> walk -> latent map -> posterior -> guide.

In: a Pyro model, or a kernel for one.  Out: `MetricBNN`, which after `run` has them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pyro.infer.mcmc.util import diagnostics, print_summary
from torch import Tensor

from .diagnostics.health import health
from .energy.potential import BatchedPotential
from .files.storage import FilePath, read, write
from .latent.autoencoder_map import AutoencoderMap
from .latent.guide import AutoMetric
from .latent.latent_map import KernelMap, LatentMap
from .latent.posterior import MetricPosterior
from .latent.saved import plain_arguments, saved_arguments, saved_map, saved_trajectories
from .model.sites import Model
from .predictions.arviz_export import to_arviz
from .predictions.prediction import Prediction, predict
from .refiners.pull_back import Descent
from .runtime.arguments import check_count, check_number, check_part, check_type, real_device
from .walk.kernel import DriftRefineKernel
from .walk.trajectories import Trajectories

NUMBERS_A_BATCH = 2**24  # of a stream of draws: 64 MB in single precision


@dataclass(frozen=True)
class Fitted:
    """What a fit to a walk gives."""

    latent_map: LatentMap
    posterior: MetricPosterior
    guide: AutoMetric


class MetricBNN:
    """Post-hoc Bayesian inference: walk from the MAP, straighten the walks, draw from them.

    Args:
        kernel_or_model: A Pyro model, or a `DriftRefineKernel` with settings of its own.
        num_particles: N.
        num_steps: T, recorded points a particle; None for 200 with `Steer`. This and the temperature are a kernel's
            own to say.
        temperature: Of the posterior: see `DriftRefineKernel`; None for 1.
        latent_map: The latent space; `KernelMap()` by default.
        latent_dim: Its dimension; None for as many as it needs.
        tube_scale: Width of the posterior around the decoded curves: see `MetricPosterior`.

    Example:
        >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
        >>> metric.draw(5)["weight"].shape
        torch.Size([5, 1, 2])
        >>> metric.predict(x).mean.shape
        torch.Size([20, 1])
    """

    def __init__(
        self,
        kernel_or_model: DriftRefineKernel | Model,
        *,
        num_particles: int = 20,
        num_steps: int | None = None,
        temperature: float | None = None,
        latent_map: LatentMap | None = None,
        latent_dim: int | None = None,
        tube_scale: float | None = None,
    ) -> None:
        check_count("num_particles", num_particles, "without one nothing walks.")
        if tube_scale is not None:
            check_number("tube_scale", tube_scale, "it is a deviation; None finds it.", or_zero=True)
        check_type("latent_map", latent_map, (LatentMap, type(None)), "a LatentMap, as KernelMap() is, or None")
        if latent_map is not None and latent_dim is not None:
            raise ValueError(f"latent_dim is the latent map's to say: pass {type(latent_map).__name__}({latent_dim}).")
        given = {"num_steps": num_steps, "temperature": temperature}
        given = {name: value for name, value in given.items() if value is not None}
        if not isinstance(kernel_or_model, DriftRefineKernel):
            self.kernel = DriftRefineKernel(kernel_or_model, **given)  # type: ignore[arg-type]
        elif given:
            raise ValueError(f"{' and '.join(given)} would be the kernel's to say: pass it to DriftRefineKernel.")
        else:
            self.kernel = kernel_or_model
        self.num_particles = num_particles
        self.tube_scale = tube_scale
        self._unfitted_map = latent_map if latent_map is not None else KernelMap(latent_dim)
        self._unfitted_map.check(num_particles)
        self._leaves_as_trained = False
        self._trajectories: Trajectories | None = None
        self._fitted: Fitted | None = None

    @classmethod
    def paper(cls, model: Model, task: str = "regression") -> MetricBNN:
        """The paper's own setting of every knob, and nothing of ours.

        N = 10 particles leave the trained weights as they are; T = 100 steps (50 for "uci" and "images") of alpha =
        0.1, each pulled back by M = 10 steps of descent with eta = 1e-3 on the mean loss; its autoencoder with k = 32;
        draws without a tube. The paper's weight decay of 0.01 on the mean loss is, in a model of n observations,
        `prior_scale=(0.01 * n) ** -0.5`.

        Args:
            model: A Pyro model, of `bayesianize` with trained weights.
            task: "regression", "classification", "uci" or "images".

        Example:
            >>> MetricBNN.paper(model, task="uci").kernel.num_steps
            50
        """
        steps = {"regression": 100, "classification": 100, "uci": 50, "images": 50}
        if task not in steps:
            raise ValueError(f"task must be one of {', '.join(map(repr, steps))}, got {task!r}.")
        refiner = Descent(alpha=0.1, num_refinements=10, eta=1e-3, mean_loss=True)
        kernel = DriftRefineKernel(model, refiner=refiner, num_steps=steps[task])
        metric = cls(kernel, num_particles=10, latent_map=AutoencoderMap.paper(), tube_scale=0.0)
        metric._leaves_as_trained = True
        return metric

    @property
    def model(self) -> Model:
        """The Pyro model."""
        return self.kernel.model

    def run(
        self,
        *args: Any,
        initial_params: Mapping[str, Tensor] | None = None,
        map_params: Mapping[str, Tensor] | None = None,
        batch_size: int | None = None,
        thin: int = 1,
        storage_dtype: torch.dtype | None = None,
        storage_device: torch.device | str | None = None,
        checkpoint: FilePath | None = None,
        checkpoint_every: float = 60.0,
        progress: bool = True,
        **kwargs: Any,
    ) -> MetricBNN:
        """Find the MAP, walk, fit the latent map and build the guide.

        With a `checkpoint` a run that was killed, in the walk or after it, goes on when it is called again in the same
        way, to the bits of an unbroken one; one process at a time, a second is refused.

        Ctrl-C ends a walk of at least four points of each particle: a warning says how many there are, and the map is
        fitted to them, so that all that follows a run works. A second Ctrl-C goes through, as do those in the search
        and in the fit; after one in the fit `trajectories` is there, and `fit` goes on with it. With a checkpoint the
        same call goes on later, to the whole run.

        Args:
            *args: The model's arguments, or a DataLoader of batches of them.
            initial_params: Constrained values to start the MAP search from.
            map_params: Your own MAP, constrained, by site: left from as it is, without a search.
            batch_size: Take minibatches of this many rows of the arguments.
            thin: Record only every so many steps.
            storage_dtype: Precision of the record, for large D (torch.float16 halves it).
            storage_device: Where the record is kept, for large D ("cpu").
            checkpoint: A file to write the state of the walk to and, if it is there, to go on from; it stays when
                the run is over.
            checkpoint_every: Seconds between two writes; 0 to write at each step.
            progress: Show progress bars.
            **kwargs: The model's keyword arguments.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10)
            >>> metric.run(x, y, checkpoint=folder / "walk.pt", progress=False).trajectories.num_steps
            10
        """
        if self._leaves_as_trained and map_params is None and initial_params is None:
            map_params = getattr(self.model, "trained_params", None)
        walk = self.kernel.walk(
            *args,
            num_particles=self.num_particles,
            initial_params=initial_params,
            map_params=map_params,
            batch_size=batch_size,
            thin=thin,
            storage_dtype=storage_dtype,
            storage_device=storage_device,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            progress=progress,
            **kwargs,
        )
        self._trajectories, self._fitted = walk, None
        return self.fit(progress=progress)

    def fit(self, latent_map: LatentMap | None = None, *, progress: bool = True) -> MetricBNN:
        """Fit the latent map, or another one, to the walk that is there, and build the guide; `run` does it by itself.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
            >>> metric.fit(AutoencoderMap(latent_dim=2, num_epochs=5), progress=False).latent_map.ends.shape
            torch.Size([4, 2])
        """
        unfitted = latent_map if latent_map is not None else self._unfitted_map
        unfitted.check(self.trajectories.num_particles)
        self._fitted = None  # the map may be the very one that is fitted anew
        self._unfitted_map = unfitted
        return self._built(self.trajectories, unfitted.fit(self.trajectories, progress=progress))

    def _built(self, trajectories: Trajectories, latent_map: LatentMap) -> MetricBNN:
        """Itself, with the posterior and the guide of a fitted map."""
        posterior = MetricPosterior(latent_map, self.tube_scale)
        args, kwargs = self.kernel.example_arguments
        guide = AutoMetric(self.model, posterior, trajectories.sites, args, kwargs)
        self._trajectories, self._fitted = trajectories, Fitted(latent_map, posterior, guide)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the guide, which Pyro would send without its model, and is made again."""
        fitted = self._fitted.latent_map if self._fitted is not None else None
        return {**vars(self), "_fitted": fitted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        latent_map = state["_fitted"]
        vars(self).update({**state, "_fitted": None})
        if latent_map is not None:
            self._built(self.trajectories, latent_map)

    @property
    def _found(self) -> Fitted:
        if self._fitted is None:
            _ = self.trajectories  # says so where nothing has been walked
            raise ValueError("the walk is there, but its latent map has not been fitted to the end: call fit() first.")
        return self._fitted

    @property
    def latent_map(self) -> LatentMap:
        """The fitted latent space."""
        return self._found.latent_map

    @property
    def posterior(self) -> MetricPosterior:
        """The distribution of theta."""
        return self._found.posterior

    @property
    def guide(self) -> AutoMetric:
        """The posterior as a Pyro autoguide."""
        return self._found.guide

    # ------------------------------------------------------------------------------ save and load

    def save(self, path: FilePath, *, data: bool = True) -> None:
        """Write all that `run` found to a file, which cannot run code when it is read.

        A save that is interrupted, or that a full disk stops, leaves the file that was there whole, and the object
        as it is. The model is not in the file.

        Args:
            path: The file.
            data: Keep the model's arguments too (of a loader, one batch): they show the model's structure. Without
                them `load` needs them.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
            >>> metric.save(folder / "posterior.pt")
            >>> MetricBNN.load(folder / "posterior.pt", model).draw(5)["weight"].shape
            torch.Size([5, 1, 2])
        """
        walk = self.trajectories
        content = {
            "map_params": self.map_params,
            "precision": walk.sites.dtype,
            "trajectories": walk.state(),
            "latent_map": {"class": type(self.latent_map).__name__, "state": self.latent_map.state()},
            "tube_scale": self.tube_scale,
            "num_particles": self.num_particles,
            "num_steps": self.kernel.num_steps,
            "temperature": self.kernel.temperature,
            "arguments": plain_arguments(self.kernel.example_arguments) if data else None,
        }
        write(path, "posterior", content)

    @classmethod
    def load(
        cls,
        path: FilePath,
        kernel_or_model: DriftRefineKernel | Model,
        *args: Any,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> MetricBNN:
        """What was saved, with the same draws from the same seed; `run` starts anew.

        Args:
            path: A file from `save`.
            kernel_or_model: The Pyro model that it was made with, or a `DriftRefineKernel` for it.
            *args: The model's arguments, instead of those in the file.
            device: Where the tensors go; None for where they were.
            **kwargs: The model's keyword arguments.

        Raises:
            ValueError: The file is truncated, foreign, of another model, or the arguments are missing.
        """
        device = None if device is None else real_device("device", device)
        content = read(path, "posterior", device)
        arguments = (args, kwargs) if args or kwargs else saved_arguments(content)
        num_particles = content.value("num_particles", int)
        tube_scale = content.value("tube_scale", int, float, type(None))
        if not isinstance(kernel_or_model, DriftRefineKernel):
            settings = {
                "num_steps": content.value("num_steps", int),
                "temperature": content.value("temperature", int, float),
            }
            kernel_or_model = DriftRefineKernel(kernel_or_model, **settings)
        metric = cls(kernel_or_model, num_particles=num_particles, tube_scale=tube_scale)
        sites = BatchedPotential(metric.model, *arguments[0], **arguments[1]).sites
        trajectories = saved_trajectories(content, sites)
        metric._unfitted_map = saved_map(content, trajectories)
        metric.kernel.example_arguments = arguments
        return metric._built(trajectories, metric._unfitted_map)

    @property
    def trajectories(self) -> Trajectories:
        """The record of the walk."""
        if self._trajectories is None:
            raise ValueError("nothing has been walked yet: call run(*args) with the model's data first.")
        return self._trajectories

    @property
    def map_params(self) -> dict[str, Tensor]:
        """The MAP by site, constrained."""
        return self.trajectories.sites.unflatten(self.trajectories.theta_star.to(self.trajectories.sites.dtype))

    def get_samples(self, group_by_chain: bool = False) -> dict[str, Tensor]:
        """The walk's own points by site, as Pyro's MCMC gives them: (N T, ...) or (N, T, ...)."""
        return self.trajectories.samples(group_by_chain)

    def draw(self, num_samples: int, *, num_refinements: int = 0) -> dict[str, Tensor]:
        """New draws from the latent posterior by site, constrained: (S, ...).

        Args:
            num_samples: S.
            num_refinements: Gradients by which the kernel takes each draw nearer to the fiber; 0 for none, the default.
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
        if batch_size is not None:
            check_count("batch_size", batch_size, "it counts draws.")
        sites = self.trajectories.sites
        size = batch_size or max(1, NUMBERS_A_BATCH // sites.dim)
        sizes = (min(size, num_samples - start) for start in range(0, num_samples, size))
        if num_refinements == 0:
            return (self.guide.sample_posterior(count) for count in sizes)
        refine = partial(self.kernel.relax, num_refinements=num_refinements)
        refined = MetricPosterior(self.latent_map, self.tube_scale, refine)
        return (sites.unflatten(refined.sample(torch.Size((count,)))) for count in sizes)

    def predict(
        self, x: Any, num_samples: int = 200, *, num_refinements: int = 0, chunk_size: int | None = None
    ) -> Prediction:
        """What the latent posterior predicts at x, for all draws at once."""
        samples = self.draw(num_samples, num_refinements=num_refinements)
        return predict(self.model, samples, x, chunk_size=chunk_size)  # type: ignore[arg-type]

    def diagnostics(self) -> dict[str, Any]:
        """R-hat and effective sample size of each site, as Pyro's MCMC gives them, and the walk's health."""
        result = diagnostics(self.trajectories.samples(group_by_chain=True), group_by_chain=True)
        state = health(self)
        result["frozen"] = list(state.frozen)
        result["drift survived"] = state.drift_survived
        result["energy error"] = state.energy_error
        result["warnings"] = list(state.warnings)
        return result

    def summary(self, prob: float = 0.9) -> None:
        """Print a table of the walk's samples, as Pyro's MCMC does."""
        check_part("prob", prob, "it is the part of the samples within the interval.")
        print_summary(self.trajectories.samples(group_by_chain=True), prob=prob, group_by_chain=True)

    def to_arviz(self, *args: Any, num_samples: int | None = None, **settings: Any) -> Any:
        """The posterior for ArviZ: the walk's points, a chain for each particle, or draws of the latent posterior.

        Args:
            *args: The model's arguments, observations included; by default those of `run`.
            num_samples: Take so many draws of the latent posterior, as one chain; None takes the walk's own points.
            **settings: What to put in (`log_likelihood`, `posterior_predictive`, `prior`, `coords`, `chunk_size`: see
                the function `to_arviz`), and the model's keyword arguments.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
            >>> metric.to_arviz()["posterior"]["bias"].shape
            (4, 10, 1)
            >>> metric.to_arviz(num_samples=50, posterior_predictive=False)["log_likelihood"]["obs"].shape
            (1, 50, 20)
        """
        return to_arviz(self, self.model, *args, num_samples=num_samples, **settings)
