"""Walk the low-loss fiber around a MAP estimate (paper, section 4.1).

In: a Pyro model and its data.  Out: Trajectories, thetas (N, T + 1, D); or, in Pyro's MCMC, one chain.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from ..energy.curvature import smallness
from ..energy.minibatches import potential_of
from ..energy.potential import BatchedPotential
from ..energy.prior_units import prior_units
from ..files.storage import FilePath
from ..model.structure import Model
from ..refiners.named import named_refiner
from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles
from ..runtime.arguments import check_count, check_mapping, check_model, check_number, check_type
from .checkpoint import Checkpoint, described, saved_ground, saved_state
from .loop import advance, at_the_map, go_on, leave, new_record, relax
from .map_search import MAX_ITERATIONS, find_map, given_point
from .trajectories import Trajectories, check_storage

SEARCH_CALLS = 100  # about what a search for the MAP and the curvature there take on a network
Params = Mapping[str, Tensor]


class DriftRefineKernel(MCMCKernel):
    """Particles leave the MAP, each with a random drift, and the gradient keeps them on the fiber.

    `walk` moves N particles at once. The same kernel works in Pyro's own `MCMC`, with one particle a
    chain.

    Args:
        model: A Pyro model with continuous latent sites.
        refiner: `Steer()`, `Descent()`, `Adam()` or one of their lower-case names; None for `Steer()`.
        effort: Of `Steer`: time for fidelity, 1 by default. Four times as much goes twice as far in steps half as long.
        num_steps: T, the number of recorded points that the walk is planned for; None for as many as the
            refiner asks for: 200 for Steer, more with more effort, 100 for the others. In Pyro's `MCMC` it is
            warm-up and samples together.
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
        refiner: Refiner | str | None = None,
        effort: float | None = None,
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
        self.refiner = named_refiner(refiner, effort)
        self._num_steps = num_steps
        self.temperature = temperature
        self.compile = compile
        self.chunk_size = chunk_size
        self.cleanup()

    def __repr__(self) -> str:
        return f"DriftRefineKernel({self.refiner}, num_steps={self.num_steps}, temperature={self.temperature:g})"

    @property
    def num_steps(self) -> int:
        """T."""
        return self._num_steps if self._num_steps is not None else self.refiner.num_points

    # ------------------------------------------------------------------------------ N particles

    def walk(
        self,
        *args: Any,
        num_particles: int = 20,
        potential: BatchedPotential | None = None,
        initial_params: Params | None = None,
        map_params: Params | None = None,
        max_iterations: int = MAX_ITERATIONS,
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
            potential: The energy to walk on, in place of arguments: one with another gradient estimator, say.
            initial_params: Constrained values to start the MAP search from.
            map_params: Constrained values to leave from as they are, without a search.
            max_iterations: Of the search for the MAP.
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
        check_count("max_iterations", max_iterations, "the search takes some.")
        with Checkpoint.opened(checkpoint, checkpoint_every) as file:
            potential = self._given_potential(potential, args, kwargs, batch_size, keeps_place=file is not None)
            arguments = (potential.args, dict(potential.kwargs))
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
                if smallness(potential.dim) < 1:  # worth tracing from the first call on; small models' calls are cheap
                    mode = "trace" if self.compile is False else "auto"
                    potential = potential.using(mode=mode, expected_calls=SEARCH_CALLS, chunk_size=self.chunk_size)
                theta_star, scale = _leaving_from(potential, initial_params, map_params, max_iterations, progress)
                ground = self._planned(Ground(potential, theta_star, scale, self.num_steps, num_particles))
                ground, state = leave(ground, self.refiner, make_record)
            walk = go_on(ground, self.refiner, state, thin, file, progress)
        ground = replace(ground, measured={**ground.measured, "step_size": state.particles.step_size})
        return replace(walk, ground=ground, arguments=arguments, in_batches=potential.is_noisy)

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

    def _settings(self, potential: BatchedPotential, start_from: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """What has to be the same for a walk to go on."""
        settings = ("num_steps", "temperature", "compile", "chunk_size")
        return {**{name: getattr(self, name) for name in settings}, **described(self.refiner, potential, start_from)}

    def relax(self, walk: Trajectories, theta: Tensor, num_refinements: int) -> Tensor:
        """Points (S, D) near the fiber of a walk, taken onto it by so many gradients each."""
        check_type("walk", walk, Trajectories, "the Trajectories that walk() gave")
        return relax(self.refiner, walk, theta, num_refinements)

    def _given_potential(
        self,
        potential: BatchedPotential | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        batch_size: int | None,
        keeps_place: bool,
    ) -> BatchedPotential:
        """The energy that was given, or that of the arguments, at the kernel's temperature."""
        if potential is None:
            potential = potential_of(self.model, args, kwargs, batch_size, keeps_place)
        else:
            check_type("potential", potential, BatchedPotential, "a BatchedPotential of the kernel's model")
            if args or kwargs or batch_size is not None:
                raise ValueError("potential stands for the model's arguments: pass it, or them, not both.")
            if potential.model is not self.model:
                raise ValueError("the potential is of another model than the kernel's: make both of one model.")
        return potential if self.temperature == 1 else potential.at(self.temperature)

    def _planned(self, ground: Ground) -> Ground:
        """With the energy run in the way that the length of the walk pays for."""
        mode = "auto" if self.compile is None else "compile" if self.compile else "trace"
        calls = self.refiner.num_gradients(ground)
        potential = ground.potential.using(mode=mode, expected_calls=calls, chunk_size=self.chunk_size)
        return ground.on(potential)

    # --------------------------------------------------------------------------- Pyro's MCMC

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        self._energy = self._given_potential(None, args, kwargs, None, keeps_place=False)
        self.transforms = {site.name: site.transform.inv for site in self._energy.sites.sites}
        self._chain, self._chain_steps = None, _asked_of_mcmc(warmup_steps) or self.num_steps

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """The MAP by site, unconstrained, as Pyro's MCMC wants it."""
        if self._given is None:
            potential = self._with_data()
            return potential.sites.unconstrained(find_map(potential, progress=False).theta)
        return self._given

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._given = params

    def _with_data(self) -> BatchedPotential:
        if self._energy is None:
            raise ValueError("the kernel has no data yet: MCMC(kernel, ...).run(*args) gives it.")
        return self._energy

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The next recorded point after `params`."""
        potential = self._with_data()
        theta = potential.sites.flatten_unconstrained(params)
        if self._chain is None or not torch.equal(self._chain[1].theta[0], theta):
            scale = prior_units(potential).scale
            ground = self._planned(Ground(potential, theta, scale, self._chain_steps, 1))
            self._chain = self.refiner.approach(ground, at_the_map(ground, self.refiner))
        ground, before = self._chain
        particles, error = advance(ground, self.refiner, before)
        self._frozen += int(not bool(particles.alive))
        particles = replace(particles, alive=torch.ones_like(particles.alive))  # a chain of Pyro's tries again
        self._chain, self._error = (ground, particles), float(error)
        return potential.sites.unconstrained(particles.theta[0])

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
        """Forget the run of MCMC that is over: its data, its chain and where it started."""
        self._energy: BatchedPotential | None = None
        self._chain: tuple[Ground, Particles] | None = None
        self._chain_steps = self.num_steps
        self._given: dict[str, Tensor] | None = None
        self.transforms: dict[str, Any] | None = None
        self._frozen, self._error = 0, float("nan")


def _leaving_from(
    potential: BatchedPotential,
    initial_params: Params | None,
    map_params: Params | None,
    max_iterations: int,
    progress: bool,
) -> tuple[Tensor, Tensor]:
    """theta_star and the prior's deviations, (D,) each."""
    if map_params is not None:
        return given_point(potential, map_params), prior_units(potential).scale
    estimate = find_map(potential, initial_params, max_iterations=max_iterations, progress=progress)
    return estimate.theta, estimate.units.scale


def _asked_of_mcmc(warmup_steps: int) -> int | None:
    """Warm-up and samples that Pyro's MCMC will ask for; None where another caller does not say.

    Pyro tells a kernel the warm-up alone. How many samples follow stands in the function that calls `setup`.
    """
    num_samples = sys._getframe(2).f_locals.get("num_samples")
    return warmup_steps + num_samples if isinstance(num_samples, int) else None
