"""The front door: MAP -> walk -> latent map -> posterior -> guide.

In: a Pyro model, or a kernel for one.  Out: `MetricBNN`, which after `run` has them all.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from tqdm.auto import tqdm

from .diagnostics.gain import noise_warnings, unseen_rows
from .diagnostics.health import arrival
from .energy.potential import BatchedPotential
from .files.storage import FilePath, read, write
from .graphs.execution import Mode
from .latent import KernelMap, LatentMap
from .latent.autoencoder_map import AutoencoderMap
from .latent.saved import plain_arguments, restore_model, saved_arguments, saved_map, saved_trajectories, state_of_model
from .model.network import BayesianNetwork
from .model.structure import Model
from .refiners.pull_back import Descent
from .refiners.refiner import Refiner
from .results import Results
from .runtime.arguments import check_count, check_number, check_type, real_device
from .tempering import PriorTrial, TemperatureTrial, choose, is_to_choose
from .walk.kernel import DriftRefineKernel
from .walk.trajectories import Trajectories

PAPERS_STEPS = {"regression": 100, "classification": 100, "uci": 50, "images": 50}


class MetricBNN(Results):
    """Post-hoc Bayesian inference: walk from the MAP, straighten the walks, draw from them.

    Args:
        kernel_or_model: A Pyro model, or a `DriftRefineKernel`, which then says how to walk.
        num_particles: N, how many walks there are.
        refiner: What keeps a particle on the fiber: `Steer()`, `Anneal()`, `Langevin()`, `Descent()`, `Adam()` or one
            of their names; None for what fits the model and its data.
        effort: The one knob: time for fidelity, 1 by default.
        num_steps: T, recorded points a particle; None for 200 with `Steer`, more with more effort.
        temperature: Of the posterior: see `DriftRefineKernel`; None for 1. Clean labels want a cold one, noisy ones a
            warm one. "auto" chooses, on the validation rows of `run`, else by cross-validation with small networks
            trained anew. `temperature_choice` then says what was taken and why. Where neither way is open it is 1, and
            a warning says so.
        latent_map: The latent space; `KernelMap()` by default.
        latent_dim: Its dimension; None for as many as it needs.
        tube_scale: Width of the posterior around the decoded curves, see `MetricPosterior`; None for a 2000th of the
            spread of each coordinate, less where the energy would feel that.
        compile: Whether to compile the energy; None where the gradients to come are worth it.
        mode: How the energy runs: "loop" for models that branch on values; see `DriftRefineKernel`.
        chunk_size: At most this many particles at once, for when memory is short.

    Example:
        >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
        >>> metric
        MetricBNN(4 walks of 10 points, D = 3, KernelMap)
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
        refiner: Refiner | str | None = None,
        effort: float | None = None,
        num_steps: int | None = None,
        temperature: float | Literal["auto"] | None = None,
        latent_map: LatentMap | None = None,
        latent_dim: int | None = None,
        tube_scale: float | None = None,
        compile: bool | None = None,
        mode: Mode | None = None,
        chunk_size: int | None = None,
    ) -> None:
        check_count("num_particles", num_particles, "without one nothing walks.")
        check_number("tube_scale", tube_scale, "it is a deviation; None finds it.", or_zero=True, or_none=True)
        check_type("latent_map", latent_map, LatentMap, "a LatentMap, as KernelMap() is, or None", or_none=True)
        if latent_map is not None and latent_dim is not None:
            raise ValueError(f"latent_dim is the latent map's to say: pass {type(latent_map).__name__}({latent_dim}).")
        self._chooses = is_to_choose(temperature, isinstance(kernel_or_model, DriftRefineKernel))
        temperature = None if self._chooses else temperature
        walking: dict[str, Any] = {"refiner": refiner, "effort": effort, "num_steps": num_steps}
        walking |= {"temperature": temperature, "compile": compile, "mode": mode, "chunk_size": chunk_size}
        walking = {name: value for name, value in walking.items() if value is not None}
        if not isinstance(kernel_or_model, DriftRefineKernel):
            self.kernel = DriftRefineKernel(kernel_or_model, **walking)
        elif walking:
            raise ValueError(f"{' and '.join(walking)} would be the kernel's to say: pass it to DriftRefineKernel.")
        else:
            self.kernel = kernel_or_model
        self.num_particles = num_particles
        self.tube_scale = tube_scale
        self._unfitted_map = latent_map if latent_map is not None else KernelMap(latent_dim)
        self._unfitted_map.check(num_particles)
        self._leaves_as_trained = False

    def __repr__(self) -> str:
        latent = type(self._unfitted_map).__name__
        if self._trajectories is None:
            return f"MetricBNN({self.num_particles} particles, {self.kernel.refiner}, {latent}, not run yet)"
        walk = repr(self._trajectories).removeprefix("Trajectories(").removesuffix(")")
        return f"MetricBNN({walk}, {latent})"

    @classmethod
    def paper(cls, model: Model, task: str = "regression") -> Self:
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
        if task not in PAPERS_STEPS:
            raise ValueError(f"task must be one of {', '.join(map(repr, PAPERS_STEPS))}, got {task!r}.")
        refiner = Descent(alpha=0.1, num_refinements=10, eta=1e-3, mean_loss=True)
        kernel = DriftRefineKernel(model, refiner=refiner, num_steps=PAPERS_STEPS[task])
        metric = cls(kernel, num_particles=10, latent_map=AutoencoderMap.paper(), tube_scale=0.0)
        metric._leaves_as_trained = True
        return metric

    @classmethod
    def from_walk(
        cls, kernel_or_model: DriftRefineKernel | Model, walk: Trajectories, *, progress: bool = True, **settings: Any
    ) -> Self:
        """The posterior of a walk that is there already: of a kernel's own, or of several that were joined.

        Args:
            kernel_or_model: What it was walked with, or its model.
            walk: The record.
            progress: Show a progress bar.
            **settings: Of `MetricBNN`, as `latent_map`.

        Example:
            >>> MetricBNN.from_walk(model, walk.join(walk.thinned(1)), progress=False)
            MetricBNN(8 walks of 10 points, D = 3, KernelMap)
        """
        check_type("walk", walk, Trajectories, "the Trajectories that kernel.walk() gave")
        metric = cls(kernel_or_model, num_particles=walk.num_particles, **settings)
        metric._trajectories = walk
        return metric.fit(progress=progress)

    def run(self, *args: Any, progress: bool = True, validation: Sequence[Any] | None = None, **settings: Any) -> Self:
        """Find the MAP, walk, fit the latent map and build the guide; says in one sentence whether the walk arrived.

        With a `checkpoint` a run that was killed goes on when it is called again in the same way, to the bits of an
        unbroken one. Ctrl-C ends a walk that has at least four points of each particle: a warning says how many there
        are, and all that follows a run works with them. A second Ctrl-C ends the run. After one in the fit of the
        latent map, `fit` goes on.

        Args:
            *args: The model's arguments, or a DataLoader of batches of them.
            progress: Show progress bars.
            validation: Rows (x, y) of a network that neither its training nor this run sees. `gain` then has what the
                network as it came, the MAP and the posterior predict there, and `run` says where nothing was gained.
                With temperature="auto", and prior_scale="auto" of `bayesianize`, they choose these.
            **settings: What `DriftRefineKernel.walk` takes (`initial_params`, `map_params`, `starts`,
                `num_networks`, `max_iterations`, `batch_size`, `thin`, `storage_dtype`, `storage_device`, `checkpoint`,
                `checkpoint_every`, `potential`, `ranks`), and the model's keyword arguments.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10)
            >>> metric.run(x, y, checkpoint=folder / "walk.safetensors", progress=False).trajectories.num_steps
            10
        """
        if self._leaves_as_trained and not settings.keys() & {"initial_params", "map_params", "starts"}:
            settings["map_params"] = getattr(self.model, "trained_params", None)
        rows = unseen_rows(self.model, validation)
        settings |= self._choose(args, {**settings, "num_particles": self.num_particles}, rows, progress)
        walk = self.kernel.walk(*args, num_particles=self.num_particles, progress=progress, **settings)
        self._trajectories, self._guide, self.gain = walk, None, None
        progress = progress and walk.share.rank == 0
        self.fit(progress=progress)
        end = arrival(walk)
        if progress and end.arrived:
            tqdm.write(f"{end}", file=sys.stderr)
        said = [*noise_warnings(self.model, walk), *([] if end.arrived else [str(end)]), *self._gained(rows)]
        for text in said if walk.share.rank == 0 else ():  # of several ranks one says it
            warnings.warn(text, stacklevel=2)
        return self

    def _choose(self, args: Any, settings: dict[str, Any], rows: Any, progress: bool) -> dict[str, Any]:
        """Set what is "auto", the prior's scale first; returns where the search for the MAP can go on from."""
        found: dict[str, Any] = {}
        self.kernel.temperature = 1.0 if self._chooses else self.kernel.temperature
        if isinstance(self.model, BayesianNetwork) and self.model.prior_is_auto:
            self.model.take_prior_scale(1.0)
            self.prior_choice, found = choose(PriorTrial, self.kernel, args, settings, rows, progress)
            self.model.take_prior_scale(self.prior_choice.scale)
        if self._chooses:
            settings = {**settings, **found}
            self.temperature_choice, more = choose(TemperatureTrial, self.kernel, args, settings, rows, progress)
            self.kernel.temperature, found = self.temperature_choice.temperature, found | more
        return found

    def fit(self, latent_map: LatentMap | None = None, *, progress: bool = True) -> Self:
        """Fit the latent map, or another one, to the walk that is there, and build the guide; `run` does it by itself.

        Example:
            >>> metric = MetricBNN(model, num_particles=4, num_steps=10).run(x, y, progress=False)
            >>> metric.fit(AutoencoderMap(latent_dim=2, num_epochs=5), progress=False).latent_map.ends.shape
            torch.Size([4, 2])
        """
        unfitted = latent_map if latent_map is not None else self._unfitted_map
        unfitted.check(self.trajectories.num_particles)
        self._guide = None  # the map may be the very one that is fitted anew
        self._unfitted_map = unfitted
        return self._built(self.trajectories, unfitted.fit(self.trajectories, progress=progress))

    def save(self, path: FilePath, *, data: bool = True) -> None:
        """Write all that `run` found to a file, which cannot run code when it is read.

        A save that is interrupted, or that a full disk stops, leaves the file that was there whole. The model is not in
        the file. Of several ranks the first one writes it.

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
        if walk.share.is_apart:
            raise ValueError("each rank has its own walks, and a file has all: run(..., ranks=Ranks(gather='first')).")
        if walk.share.rank > 0:
            return
        content = {
            "map_params": self.map_params,
            "precision": walk.sites.dtype,
            "trajectories": walk.state(),
            "latent_map": {"class": type(self.latent_map).__name__, "state": self.latent_map.state()},
            "tube_scale": self.tube_scale,
            "tube": self._tube,
            "num_particles": self.num_particles,
            "num_steps": self.kernel.num_steps,
            "temperature": self.kernel.temperature,
            **state_of_model(self.model),
            "arguments": plain_arguments(walk.arguments) if data else None,
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
    ) -> Self:
        """What was saved, with the same draws from the same seed; `run` starts anew.

        Args:
            path: A file from `save`.
            kernel_or_model: The Pyro model that it was made with, or a `DriftRefineKernel` for it; one with
                prior_scale="auto" gets the scale that was chosen.
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
            num_steps, temperature = content.value("num_steps", int), content.value("temperature", int, float)
            kernel_or_model = DriftRefineKernel(kernel_or_model, num_steps=num_steps, temperature=temperature)
        metric = cls(kernel_or_model, num_particles=num_particles, tube_scale=tube_scale)
        tube = content.value("tube", float, type(None)) if "tube" in content else None
        restore_model(content, metric.model)
        sites = BatchedPotential(metric.model, *arguments[0], **arguments[1]).sites
        trajectories = replace(saved_trajectories(content, sites), arguments=arguments)
        metric._unfitted_map = saved_map(content, trajectories)
        return metric._built(trajectories, metric._unfitted_map, tube)
