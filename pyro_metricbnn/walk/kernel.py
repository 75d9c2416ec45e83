"""Walk the low-loss fiber around a MAP estimate (paper, section 4.1).

In: a Pyro model and its data.  Out: Trajectories, thetas (N, T + 1, D); or, in Pyro's MCMC, one chain.
"""

import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor, nn

from ..energy.minibatches import potential_of
from ..energy.potential import BatchedPotential
from ..energy.prior_units import prior_units, smallness
from ..graphs.execution import Execution, Mode
from ..model.structure import Model
from ..ranks.share import ALONE
from ..refiners.refiner import Refiner
from ..refiners.state import Ground, Particles
from ..runtime.arguments import check_count, check_model, check_number, check_type
from ..runtime.progress import progress_bar
from ..search.first_look import first_look
from ..search.inferred_noise import points_with_noise
from ..search.map_search import find_map, given_point
from ..search.starts import NUM_NETWORKS, given_points, leaves_as_trained, trained_points
from .checkpoint import Checkpoint, described, saved_ground, saved_state
from .foresight import announce, check_memory
from .loop import advance, at_the_map, go_on, leave, relax
from .options import WalkOptions, asked_of_mcmc, named_refiner, refiner_for, refiner_on
from .over_ranks import checked, gathered, ground_for_all, held, joined, over_rows
from .trajectories import Trajectories

SEARCH_CALLS = 100  # about what a search for the MAP and the curvature there take on a network
COLD = 0.1  # a temperature below which the units shrink with the posterior: in the prior's a walk would never end


class DriftRefineKernel(MCMCKernel):
    """Particles leave the MAP, each with a random drift, and the gradient keeps them on the fiber.

    `walk` moves N particles at once. The same kernel works in Pyro's own `MCMC`, with one particle a chain.

    Args:
        model: A Pyro model with continuous latent sites.
        refiner: `Steer()`, `Anneal()`, `Langevin()`, `Descent()`, `Adam()` or one of their lower-case names; None for
            `Langevin()` on minibatches, `Anneal()` for networks of up to 2,000 weights and normal noise, else
            `Steer()`.
        effort: Of `Steer`, `Anneal` and `Langevin`: time for fidelity, 1 by default.
        num_steps: T, the number of recorded points that the walk is planned for; None for as many as the
            refiner asks for: 200 for Steer, more with more effort, 100 for the others. In Pyro's `MCMC` it is
            warm-up and samples together.
        temperature: Walk on the posterior to the power 1 / temperature: above 1 wider than the model's own, which is
            often too sure where there are few rows (see `choose_temperature`).
        compile: Whether to compile the energy; None where the gradients to come are worth it.
        mode: How the energy runs, one of those of `pyro_metricbnn.energy.Execution`; "loop" takes particle after
            particle, for models that branch on values. None for what is fastest.
        chunk_size: At most this many particles at once, for when memory is short. Where it turns out to be, half as
            many are tried, once, and said.

    Example:
        >>> kernel = DriftRefineKernel(model, num_steps=10)
        >>> kernel.walk(x, y, num_particles=4, progress=False).thetas.shape
        torch.Size([4, 11, 3])
        >>> MCMC(kernel, num_samples=5, warmup_steps=2, disable_progbar=True).run(x, y)
    """

    transforms: dict[str, Any] | None  # what Pyro's MCMC asks for; the others are of the chain that it walks
    _energy: BatchedPotential | None
    _chain: tuple[Ground, Particles] | None
    _given: dict[str, Tensor] | None

    def __init__(
        self,
        model: Model,
        *,
        refiner: Refiner | str | None = None,
        effort: float | None = None,
        num_steps: int | None = None,
        temperature: float = 1.0,
        compile: bool | None = None,
        mode: Mode | None = None,
        chunk_size: int | None = None,
    ) -> None:
        check_model(model)
        check_count("num_steps", num_steps, "a walk needs a step to leave the MAP.", or_none=True)
        check_type("compile", compile, bool, "True, False, or None where it pays", or_none=True)
        check_count("chunk_size", chunk_size, "it counts particles.", or_none=True)
        check_number("temperature", temperature, "1 is the model's own; MetricBNN(model, temperature='auto') chooses.")
        self.model = model
        self._is_default = refiner is None
        self.refiner = named_refiner(refiner_for(model) if refiner is None else refiner, effort)
        self.num_steps = num_steps if num_steps is not None else self.refiner.num_points
        self.temperature = temperature
        self.compile = compile
        if mode is not None:
            Execution(mode=mode)  # refuses what is none
        if mode is not None and compile is not None:
            raise ValueError(f"compile={compile} and mode={mode!r} say the same thing twice: pass one of them.")
        self.mode = mode
        self.chunk_size = chunk_size
        self.cleanup()

    def __repr__(self) -> str:
        return f"DriftRefineKernel({self.refiner}, num_steps={self.num_steps}, temperature={self.temperature:g})"

    def walk(self, *args: Any, **settings: Any) -> Trajectories:
        """Walk N particles for T steps.

        With a `checkpoint` a walk that was killed goes on, when it is called again in the same way, to the bits of an
        unbroken one; a finished one is read from the file. A write that fails (a full disk) is said and tried again.

        Ctrl-C ends a walk of at least four points of each particle there and then: they are returned, with a warning.
        With fewer, and in the search for the MAP, it goes through. With a checkpoint the same call goes on later, to
        the whole walk.

        Args:
            *args: The model's arguments, or a DataLoader of batches of them.
            **settings: The options of `pyro_metricbnn.walk.WalkOptions` (`num_particles`, `potential`,
                `initial_params`, `map_params`, `starts`, `num_networks`, `max_iterations`, `batch_size`, `thin`,
                `storage_dtype`, `storage_device`, `checkpoint`, `checkpoint_every`, `progress`, `ranks`), and
                the model's keyword arguments.
        """
        options, kwargs = WalkOptions.split(settings, self.model)
        if options.thin > self.num_steps:
            raise ValueError(f"thin must be from 1 to num_steps = {self.num_steps}, got {options.thin}.")
        share, options = joined(options)
        with Checkpoint.opened(options) as file:
            potential = over_rows(self._energy_of(args, kwargs, options, keeps_place=file is not None), share)
            arguments, refiner = (potential.args, dict(potential.kwargs)), self._refiner_on(potential)
            sites = potential.sites
            check_memory(sites.dim, self.num_steps, sites.dtype, sites.device, held(share, options))
            settings = self._described(potential, options) if file or share.is_several else {}
            settings = checked(share, settings, has_checkpoint=file is not None)
            saved = file.find(settings, share) if file is not None else None
            if saved is not None:
                share.restart(sites.device)
                ground = self._planned(saved_ground(saved, potential, self.num_steps, options.num_particles, share))
                state = saved_state(saved, ground, refiner, options)
            else:
                first_look(potential, searches=options.map_params is None and options.starts is None)
                ground = ground_for_all(share, potential, refiner, lambda: self._ground(potential, options))
                with progress_bar(desc="approach", bar_format="{desc}", leave=False, disable=not options.progress):
                    ground = self._planned(ground)
                    announce(ground, refiner, options)
                    ground, state = leave(ground, refiner, options)
            walk = go_on(ground, refiner, state, options, file)
        measured = {**ground.measured, "step_size": state.particles.step_size}
        found = {"modes": measured["modes"], "heat": refiner.heat(ground, state.particles)}
        ground = replace(ground, measured=measured, share=ALONE)
        walk = replace(walk, ground=ground, arguments=arguments, in_batches=potential.is_noisy, **found)
        return gathered(walk, share)

    def ground(self, *args: Any, **settings: Any) -> Ground:
        """Where `walk` would leave from, called in the same way: its energy, and the MAP."""
        options, kwargs = WalkOptions.split(settings, self.model)
        potential = self._energy_of(args, kwargs, options)
        first_look(potential, searches=options.map_params is None and options.starts is None)
        return self._ground(potential, options)

    def _energy_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: WalkOptions, keeps_place: bool = False
    ) -> BatchedPotential:
        """The energy that was given, or that of the arguments, at the kernel's temperature."""
        potential = options.potential
        if potential is None:
            potential = potential_of(self.model, args, kwargs, options.batch_size, keeps_place)
        elif args or kwargs or options.batch_size is not None:
            raise ValueError("potential stands for the model's arguments: pass it, or them, not both.")
        elif potential.model is not self.model:
            raise ValueError("the potential is of another model than the kernel's: make both of one model.")
        return potential if self.temperature == 1 else potential.at(self.temperature)

    def _described(self, potential: BatchedPotential, options: WalkOptions) -> dict[str, Any]:
        """What has to be the same for a walk to go on."""
        names = ("num_steps", "temperature", "compile", "mode", "chunk_size")
        settings = {name: getattr(self, name) for name in names}
        settings |= {"num_particles": options.num_particles, "thin": options.thin}
        settings["storage_dtype"] = str(options.storage_dtype)
        starts = [dict(one.named_parameters()) if isinstance(one, nn.Module) else one for one in options.starts or ()]
        start_from: Any = (
            options.map_params if options.map_params is not None else options.initial_params or starts or None
        )
        settings["num_networks"] = options.num_networks
        return {**settings, **described(self._refiner_on(potential), potential, start_from)}

    def _ground(self, potential: BatchedPotential, options: WalkOptions) -> Ground:
        """From the MAP that was given, or that a search finds."""
        if smallness(potential.dim) < 1 or self.mode:  # worth tracing from the first call on; small ones are cheap
            mode = self.mode or ("trace" if self.compile is False else "auto")
            potential = potential.using(mode=mode, expected_calls=SEARCH_CALLS, chunk_size=self.chunk_size)
        found: dict[str, Any] = {"modes": ()}
        if (points := self._points(potential, options)) is not None:
            theta, scale = points[0], prior_units(potential).scale
        else:
            many, shown = options.max_iterations, options.progress
            estimate = find_map(potential, options.initial_params, max_iterations=many, progress=shown)
            theta, scale, points = estimate.theta, estimate.units.scale, estimate.thetas
            found = {"modes": estimate.modes}
        found |= {"thetas": points} if len(points) > 1 else {}  # until particles have left them
        scale = scale * cold_units(self.temperature)
        return Ground(potential, theta, scale, self.num_steps, options.num_particles, found)

    def _points(self, potential: BatchedPotential, options: WalkOptions) -> Tensor | None:
        """The points (S, D) to leave from where nothing is searched for."""
        if options.map_params is not None:
            return given_point(potential, options.map_params)[None]
        if options.starts is not None:
            return given_points(potential, options.starts)
        num_networks = min(options.num_networks or NUM_NETWORKS, options.num_particles)
        as_trained = leaves_as_trained(self.model, options.num_networks, potential.is_noisy)
        if options.initial_params is not None or not as_trained:
            return points_with_noise(potential, options.initial_params, num_networks, options.progress)
        return trained_points(potential, num_networks, options.progress)

    def relax(self, walk: Trajectories, theta: Tensor, num_refinements: int) -> Tensor:
        """Points (S, D) near the fiber of a walk, taken onto it by so many gradients each."""
        check_type("walk", walk, Trajectories, "the Trajectories that walk() gave")
        refiner = self.refiner if walk.ground is None else self._refiner_on(walk.ground.potential)
        return relax(refiner, walk, theta, num_refinements)

    def _refiner_on(self, potential: BatchedPotential) -> Refiner:
        return refiner_on(potential, self.refiner, self._is_default)

    def _planned(self, ground: Ground) -> Ground:
        """With the energy run in the way that the length of the walk pays for."""
        mode = self.mode or ("auto" if self.compile is None else "compile" if self.compile else "trace")
        calls = self._refiner_on(ground.potential).num_gradients(ground)
        potential = ground.potential.using(mode=mode, expected_calls=calls, chunk_size=self.chunk_size)
        return ground.on(potential)

    # --------------------------------------------------------------------------- Pyro's MCMC

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        self._energy = self._energy_of(args, kwargs, WalkOptions())
        self._energy = self._energy.using(mode=self.mode) if self.mode else self._energy
        self.transforms = {site.name: site.transform.inv for site in self._energy.sites.sites}
        self._chain, self._chain_steps = None, asked_of_mcmc(warmup_steps) or self.num_steps

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """The MAP by site, unconstrained, as Pyro's MCMC wants it."""
        if self._given is None:
            potential = self._with_data()
            points = self._points(potential, WalkOptions(num_networks=1, progress=False))
            theta = find_map(potential, progress=False).theta if points is None else points[0]
            return potential.sites.unconstrained(theta)
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
            scale = prior_units(potential).scale * cold_units(self.temperature)
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
        step_size, energy = self._chain[1].step_size, float(self._chain[1].energy)
        said = {"step size": f"{step_size:.2e}", "energy": f"{energy:.1f}", "energy error": f"{self._error:.2g}"}
        return OrderedDict(said)

    def diagnostics(self) -> dict[str, Any]:
        return {"divergences": list(range(self._frozen)), "energy error": self._error}

    def cleanup(self) -> None:
        """Forget the run of MCMC that is over: its data, its chain and where it started."""
        self._energy, self._chain, self._chain_steps = None, None, self.num_steps
        self._given, self.transforms = None, None
        self._frozen, self._error = 0, float("nan")


def cold_units(temperature: float) -> float:
    """What the prior's deviations are times, as the units of a walk.

    On a Gaussian a walk in units that shrink with the root of the temperature takes as many gradients as at 1. Down to
    0.1 the prior's own are kept: in the same seconds the longer way predicts better.
    """
    # At 0.1 a test NLL of .353 for .366 on a made set, .673 for .689 on Glass; at 0.01 no better in twice the seconds.
    return min(1.0, math.sqrt(temperature / COLD))
