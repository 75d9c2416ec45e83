"""Walk the low-loss fiber around a MAP estimate (paper, section 4.1).

In: a Pyro model and its data.  Out: Trajectories, thetas (N, T + 1, D); or, in Pyro's MCMC, one chain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.utils.data import DataLoader

from ..energy.curvature import MAX_HESSIAN
from ..energy.minibatches import Minibatches, MinibatchPotential, refuse_once
from ..energy.potential import BatchedPotential
from ..energy.prior_units import prior_units
from ..files.storage import FilePath
from ..model.sites import Model
from ..refiners.pull_back import Adam, Descent
from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles, start
from ..refiners.steer import Steer
from ..runtime.arguments import (
    WrongTypeError,
    check_count,
    check_device,
    check_mapping,
    check_model,
    check_number,
    check_type,
)
from .checkpoint import Checkpoint, described, saved_ground, saved_state
from .loop import checked, go_on, leave, new_record
from .map_search import find_map, given_point
from .trajectories import Trajectories, check_storage

SEARCH_CALLS = 100  # about what a search for the MAP and the curvature there take on a network


class DriftRefineKernel(MCMCKernel):
    """Particles leave the MAP, each with a random drift, and the gradient keeps them on the fiber.

    `walk` moves N particles at once. The same kernel works in Pyro's own `MCMC`, with one particle a
    chain.

    Args:
        model: A Pyro model with continuous latent sites.
        refiner: `Steer()`, `Descent()`, `Adam()` or one of their lower-case names. On minibatches of 32 rows Steer
            had the lower negative log-likelihood on Glass (.85, Adam 1.20), Australian (.31, .41) and Ionosphere
            (.085, .090), the higher on Vehicle (.42, .37) and on Snelson's stiff regression (.33, .23 on its
            training data): the noise heats it there.
        num_steps: T, the number of recorded points that the walk is planned for; None for as many as the
            refiner asks for: 200 for Steer, more with more effort, 100 for the others.
        temperature: Walk on the posterior to the power 1 / temperature: above 1 wider than the model's own, which is
            often too sure where there are few rows (see `choose_temperature`).
        compile: Whether to compile the energy; None where the gradients to come are worth it.
        chunk_size: At most this many particles at once, for when memory is short. Where it turns out to be, half as
            many are tried, once, and said.

    Example:
        >>> kernel = DriftRefineKernel(model, num_steps=10)
        >>> kernel.walk(x, y, num_particles=4, progress=False).thetas.shape
        torch.Size([4, 11, 3])
        >>> MCMC(kernel, num_samples=5, warmup_steps=2, disable_progbar=True).run(x, y)
    """

    def __init__(
        self,
        model: Model,
        *,
        refiner: Refiner | str = "steer",
        num_steps: int | None = None,
        temperature: float = 1.0,
        compile: bool | None = None,
        chunk_size: int | None = None,
    ) -> None:
        check_model(model)
        if num_steps is not None:
            check_count("num_steps", num_steps, "a walk needs a step to leave the MAP. The paper takes 50 to 100.")
        check_type("compile", compile, (bool, type(None)), "True, False, or None where it pays")
        if chunk_size is not None:
            check_count("chunk_size", chunk_size, "it counts particles.")
        check_number("temperature", temperature, "1 is the model's own.")
        self.model = model
        self.refiner = named_refiner(refiner)
        self.num_steps = num_steps if num_steps is not None else self.refiner.num_points
        self.temperature = temperature
        self.compile = compile
        self.chunk_size = chunk_size
        self.example_arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        """Arguments of the model in the last walk, or of one batch: they show its structure."""
        self._given: dict[str, Tensor] | None = None
        self._potential_energy: BatchedPotential | None = None
        self._chain: tuple[Ground, Particles] | None = None
        self._ground: Ground | None = None
        self._step_size = 0.0
        self.transforms: dict[str, Any] | None = None
        self.cleanup()

    # ------------------------------------------------------------------------------ N particles

    def walk(
        self,
        *args: Any,
        num_particles: int = 20,
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
    ) -> Trajectories:
        """Walk N particles for T steps.

        With a `checkpoint` a walk that was killed goes on, when it is called again in the same way, to the bits of an
        unbroken one; a finished one is read from the file. A write that fails (a full disk) is said and tried again.

        Ctrl-C ends a walk of at least four points of each particle there and then: they are returned, with a warning.
        With fewer, and in the search for the MAP, it goes through. With a checkpoint the same call goes on later, to
        the whole walk.

        Args:
            *args: The model's arguments, or a DataLoader of batches of them.
            num_particles: N.
            initial_params: Constrained values to start the MAP search from.
            map_params: Constrained values to leave from as they are, without a search.
            batch_size: Take minibatches of this many rows of the arguments.
            thin: Record only every so many steps.
            storage_dtype: Precision of the record, for large D (torch.float16 halves it).
            storage_device: Where the record is kept, for large D ("cpu").
            checkpoint: A file to write the state of the walk to and, if it is there, to go on from. It stays when the
                walk is over: delete it, or take another path, to walk anew. It is for one process at a time; a second
                is refused.
            checkpoint_every: Seconds between two writes; 0 to write at each step.
            progress: Show progress bars.
            **kwargs: The model's keyword arguments.
        """
        check_count("num_particles", num_particles, "without a particle nothing walks. The default is 20.")
        self._check_record(thin, storage_dtype, storage_device)
        self._check_start(initial_params, map_params)
        with Checkpoint.opened(checkpoint, checkpoint_every) as file:
            potential = self._potential(args, kwargs, batch_size)
            example = (potential.args, dict(potential.kwargs))
            make_record = partial(new_record, self.refiner, thin, storage_dtype, storage_device)
            saved = None
            if file is not None:
                numbers = {"num_particles": num_particles, "thin": thin, "storage_dtype": str(storage_dtype)}
                start_from = map_params if map_params is not None else initial_params
                saved = file.find({**numbers, **self._settings(potential, start_from)})
            if saved is not None:
                ground = self._planned(saved_ground(saved, potential, self.num_steps, num_particles))
                state = saved_state(saved, ground, make_record, self.refiner, thin)
            else:
                if potential.dim > MAX_HESSIAN:  # worth recording from the first call on; small models' calls are cheap
                    mode = "trace" if self.compile is False else "auto"
                    potential = potential.using(mode=mode, expected_calls=SEARCH_CALLS, chunk_size=self.chunk_size)
                theta_star, scale = self._leaving_from(potential, initial_params, map_params, progress)
                ground = self._planned(Ground(potential, theta_star, scale, self.num_steps, num_particles))
                ground, state = leave(ground, self.refiner, make_record)
            trajectories = go_on(ground, self.refiner, state, thin, file, progress)
        self._ground, self._step_size, self.example_arguments = ground, state.particles.step_size, example
        return trajectories

    def _check_record(self, thin: int, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        check_count("thin", thin, "it counts steps.")
        if thin > self.num_steps:
            raise ValueError(f"thin must be from 1 to num_steps = {self.num_steps}, got {thin}.")
        check_storage(dtype, device, ("storage_dtype", "storage_device"))

    @staticmethod
    def _check_start(initial_params: Any, map_params: Any) -> None:
        if initial_params is not None and map_params is not None:
            raise ValueError(
                "initial_params and map_params say two things: the one is where a search for the MAP starts, the other "
                "the MAP itself, without a search. Pass one of them."
            )
        for name, given in (("initial_params", initial_params), ("map_params", map_params)):
            if given is not None:
                check_mapping(name, given, "constrained values")

    def _leaving_from(
        self,
        potential: BatchedPotential,
        initial_params: Mapping[str, Tensor] | None,
        map_params: Mapping[str, Tensor] | None,
        progress: bool,
    ) -> tuple[Tensor, Tensor]:
        """theta_star and the prior's deviations, (D,) each."""
        if map_params is not None:
            return given_point(potential, map_params), prior_units(potential).scale
        estimate = find_map(potential, initial_params, progress=progress)
        return estimate.theta, estimate.units.scale

    def _settings(self, potential: BatchedPotential, start_from: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """What has to be the same for a walk to go on."""
        settings = ("num_steps", "temperature", "compile", "chunk_size")
        return {**{name: getattr(self, name) for name in settings}, **described(self.refiner, potential, start_from)}

    def relax(self, theta: Tensor, num_refinements: int) -> Tensor:
        """Points (S, D) near the fiber of the last walk, taken onto it by so many gradients each.

        As many at once as there were particles, so that nothing is traced or compiled again.
        """
        if self._ground is None:
            raise ValueError("the kernel has not walked yet, so it has no data to refine on: call walk(*args) first.")
        check_count("num_refinements", num_refinements, "it counts gradients.")
        check_device("theta", theta, self._ground.theta_star.device, "the walk was")
        if theta.dim() != 2 or theta.shape[1] != len(self._ground.theta_star) or not len(theta):
            raise ValueError(f"theta has shape {tuple(theta.shape)}, but must be (S, {len(self._ground.theta_star)}).")
        if not bool(theta.isfinite().all()):
            raise ValueError(
                "theta has entries that are not finite: no gradient takes them to the fiber. Leave them out."
            )
        size = self._ground.num_particles
        short = -len(theta) % size
        rows = torch.cat([theta, theta[:1].expand(short, -1)]) if short else theta
        parts = [self.refiner.relax(self._ground, part, num_refinements, self._step_size) for part in rows.split(size)]
        return torch.cat(parts)[: len(theta)]

    def _potential(self, args: tuple[Any, ...], kwargs: dict[str, Any], batch_size: int | None) -> BatchedPotential:
        if args and isinstance(args[0], Iterator):
            refuse_once(args[0])
        in_batches = batch_size is not None or any(isinstance(arg, DataLoader) for arg in args)
        if in_batches and kwargs:
            raise ValueError(
                f"keyword arguments ({', '.join(kwargs)}) are not cut into batches: pass the data in the model's "
                "order, as (x, y), or a DataLoader of dicts, and put what is no data into the model."
            )
        if args and isinstance(args[0], DataLoader):
            if len(args) > 1:
                raise ValueError(
                    f"a DataLoader stands for all of the model's arguments, got {len(args) - 1} more: let it give "
                    "batches of all of them, as DataLoader(TensorDataset(x, y)) does."
                )
            if batch_size is not None:
                raise ValueError("batch_size is the loader's to say: pass tensors, or a loader without it.")
            potential: BatchedPotential = MinibatchPotential(self.model, args[0])
        elif batch_size is not None:
            if not any(torch.is_tensor(arg) for arg in args):
                raise ValueError("batch_size needs tensors to take rows of: pass them before it, as x and y.")
            batches = Minibatches(args, batch_size)
            potential = MinibatchPotential(self.model, batches, batches.num_data)
        else:
            potential = BatchedPotential(self.model, *args, **kwargs)
        return potential if self.temperature == 1 else potential.at(self.temperature)

    def _planned(self, ground: Ground) -> Ground:
        """With the energy run in the way that the length of the walk pays for."""
        mode = "auto" if self.compile is None else "compile" if self.compile else "trace"
        calls = self.refiner.num_gradients(ground)
        potential = ground.potential.using(mode=mode, expected_calls=calls, chunk_size=self.chunk_size)
        return ground.on(potential)

    # --------------------------------------------------------------------------- Pyro's MCMC

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        self._potential_energy = self._potential(args, kwargs, None)
        self.transforms = {site.name: site.transform.inv for site in self._potential_energy.sites.sites}
        self._chain = None

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """The MAP by site, unconstrained, as Pyro's MCMC wants it."""
        if self._given is None:
            if self._potential_energy is None:
                raise ValueError("the kernel has no data yet: MCMC(kernel, ...).run(*args) gives it.")
            theta = find_map(self._potential_energy, progress=False).theta
            return self._potential_energy.sites.unconstrained(theta)
        return self._given

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._given = params

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The next recorded point after `params`."""
        potential = self._potential_energy
        if potential is None:
            raise ValueError("the kernel has no data yet: MCMC(kernel, ...).run(*args) gives it.")
        theta = potential.sites.flatten_unconstrained(params)
        if self._chain is None or not torch.equal(self._chain[1].theta[0], theta):
            self._chain = self._start_chain(potential, theta)
        ground, particles = self._chain
        moved, error = self.refiner.advance(ground, particles)
        good = moved.is_finite
        self._frozen += int(not bool(good))
        particles = moved.where(good, particles)
        self._chain, self._error = (ground, particles), float(error)
        return potential.sites.unconstrained(particles.theta[0])

    def _start_chain(self, potential: BatchedPotential, theta: Tensor) -> tuple[Ground, Particles]:
        ground = self._planned(Ground(potential, theta, prior_units(potential).scale, self.num_steps, 1))
        particles = checked(start(ground, self.refiner.padding(len(theta))))
        return self.refiner.approach(ground, particles)

    def logging(self) -> OrderedDict[str, str]:
        if self._chain is None:
            return OrderedDict()
        particles = self._chain[1]
        return OrderedDict(
            [
                ("step size", f"{particles.step_size:.2e}"),
                ("energy", f"{float(particles.energy):.1f}"),
                ("energy error", f"{self._error:.2g}"),
            ]
        )

    def diagnostics(self) -> dict[str, Any]:
        return {"divergences": list(range(self._frozen)), "energy error": self._error}

    def cleanup(self) -> None:
        self._potential_energy = self._chain = self.transforms = None
        self._frozen, self._error = 0, float("nan")


def named_refiner(refiner: Refiner | str) -> Refiner:
    """A refiner from its lower-case name, or itself."""
    names: dict[str, type[Refiner]] = {"steer": Steer, "descent": Descent, "adam": Adam}
    if isinstance(refiner, str) and refiner in names:
        return names[refiner]()
    if isinstance(refiner, Refiner):
        return refiner
    kind = ValueError if isinstance(refiner, str) else WrongTypeError
    raise kind(f"refiner must be a Refiner or one of {', '.join(map(repr, names))}, got {refiner!r}.")
