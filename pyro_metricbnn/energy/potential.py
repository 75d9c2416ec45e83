"""The potential energy of a Pyro model, and its gradient, for a batch of particles.

In: a model and its data.  Out: U (N,) and grad U (N, D) for theta (N, D), flat and unconstrained.
U is Pyro's own: minus the log joint density, minus the log Jacobians of the sites' transforms.
"""

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self

import torch
from pyro import poutine
from torch import Tensor
from torch.func import grad_and_value
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..files.storage import Content
from ..graphs.execution import BatchedFunction, Execution, Mode
from ..model.normal_part import NormalPart
from ..model.structure import Model, has_density, kind_of
from ..runtime.arguments import check_number
from ..runtime.threads import in_turn
from ..runtime.written_out import written_out
from .frozen_part import FrozenPart, Rows, frozen_part
from .handlers import LastSite, Unvalidated
from .inspection import check_theta, explained, has_frozen_part, inspect_model, taken_by

GradientEstimator = Callable[["BatchedPotential", Tensor], tuple[Tensor, Tensor]]
"""A function of the energy of one batch, which stays, and theta (N, D): its estimates of U (N,) and grad U (N, D)."""


class BatchedPotential:
    """Potential energy of any Pyro model with continuous latent sites, for all particles at once.

    `pyro.param`s are held at the values that they have when the energy is first traced. Settings of the execution go
    through `using`: all arguments after the model are the model's own.

    Example:
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("data", len(y)):
        ...         pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)
        >>> potential = BatchedPotential(model, torch.ones(3))
        >>> potential.grad(torch.tensor([[0.0], [0.75]]))
        tensor([[-3.],
                [ 0.]])
    """

    is_noisy = False  # whether two calls at one theta differ, because each sees another batch
    temperature = 1.0
    _estimator: GradientEstimator | None = None
    _frozen: FrozenPart | None = None
    _is_cut = False  # whether a frozen part was looked for

    def __init__(self, model: Model, *args: Any, **kwargs: Any) -> None:
        self.model, (self.args, self.kwargs) = model, taken_by(model, args, kwargs)
        with in_turn():
            self.sites, self.prototype = inspect_model(model, self.args, self.kwargs)
        self._graphs: dict[Any, Any] = {}  # traced, shared with what `using` gives
        self._not_batched: list[str] = []  # so is why vmap cannot run the model
        self._bind(Execution())

    def _bind(self, execution: Execution) -> None:
        leaves, self._spec = tree_flatten((self.args, dict(self.kwargs)))
        self._is_data = [torch.is_tensor(leaf) for leaf in leaves]
        self._data = tuple(leaf.detach() for leaf in leaves if torch.is_tensor(leaf))
        self._constants = [None if torch.is_tensor(leaf) else leaf for leaf in leaves]
        self._watch = LastSite(self.sites)
        self._normal = NormalPart.of(self.model, self.sites)
        mode: Mode = "loop" if execution.mode == "loop" else "vmap"
        self._value_and_grad = BatchedFunction(grad_and_value(self._energy), execution, self._graphs, self._not_batched)
        plain = Execution(mode=mode, chunk_size=execution.chunk_size)
        self._parts = BatchedFunction(self._energy_parts, plain, not_batched=self._not_batched)

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))  # the traced graphs too
        return other

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the functions that it makes again."""
        made = ("_value_and_grad", "_parts", "_graphs", "_frozen", "_is_cut")
        return {**{name: value for name, value in vars(self).items() if name not in made}, "how": self.execution}

    def __setstate__(self, state: dict[str, Any]) -> None:
        how = state.pop("how")
        vars(self).update(state, _graphs={})
        self._bind(how)

    def using(self, **settings: Any) -> Self:
        """The same potential, run in another way: `mode`, `expected_calls`, `chunk_size` of `Execution`.

        Example:
            >>> potential = BatchedPotential(model, x, y).using(mode="compile", chunk_size=10)
        """
        other, execution = copy.copy(self), Execution(**{**vars(self.execution), **settings})
        other._cut(execution)
        other._bind(execution)
        return other

    def _cut(self, execution: Execution, rows: Callable[[], Rows | None] | None = None) -> None:
        """Compute what does not depend on theta now, where the calls to come are worth it."""
        if self._is_cut or not execution.is_worth_a_trace or not has_frozen_part(self.model, self._data):
            return
        values = {name: self.prototype.nodes[name]["value"] for name in self.sites.names}
        theta = self.flatten({**values, **getattr(self.model, "trained_params", {})}).detach()
        self._is_cut, self._frozen = True, frozen_part(self._energy_parts, theta, self._data, rows)
        self._graphs = self._graphs if self._frozen is None else {}

    @property
    def _inputs(self) -> tuple[Tensor, ...]:
        """What the energy of one particle takes beside theta: the data, or what is left to do of them."""
        return self._data if self._frozen is None else self._frozen.kept(self._data)

    def at(self, temperature: float) -> Self:
        """The energy of the tempered posterior: all log densities divided by `temperature`, 1 for the model's own.

        Example:
            >>> warm = BatchedPotential(model, x, y).at(4.0)
        """
        check_number("temperature", temperature, "1 is the model's own.")
        other = copy.copy(self)
        other.temperature, other._graphs, other._frozen, other._is_cut = temperature, {}, None, False
        other._bind(self.execution)
        return other

    def estimated_by(self, estimator: GradientEstimator) -> Self:
        """The same energy with another estimate of its gradients, such as one with control variates.

        Example:
            >>> def doubled(batch, theta):
            ...     value, grad = batch.value_and_grad(theta)
            ...     return value, 2 * grad
            >>> theta = torch.zeros(1, 3)
            >>> potential = BatchedPotential(model, x, y)
            >>> torch.equal(potential.estimated_by(doubled).grad(theta), 2 * potential.grad(theta))
            True
        """
        other = copy.copy(self)
        other._estimator = estimator
        return other

    def on(self, *args: Any) -> Self:
        """The same energy of other data of the same shapes: what was traced or compiled for one serves both."""
        other = copy.copy(self)
        other.args, other.kwargs = taken_by(self.model, args, {})
        other._data = tuple(leaf.detach() for leaf in tree_flatten((other.args, {}))[0] if torch.is_tensor(leaf))
        return other

    def next_batch(self) -> Self:
        """The energy of the next batch, which stays: any number of points can be evaluated on it. Here, of all data."""
        other = copy.copy(self)
        other.is_noisy, other._estimator = False, None
        return other

    @property
    def num_observations(self) -> int:
        """How many independent observations the model conditions on."""
        return sum(math.prod(node["fn"].batch_shape) for node in self._observed)

    @property
    def num_rows(self) -> int:
        """How many rows of data one call works through: those of a batch, and those of one event, too."""
        return sum(max([math.prod(node["fn"].batch_shape), *node["value"].shape[:1]]) for node in self._observed)

    @property
    def _observed(self) -> list[dict[str, Any]]:
        return [node for node in self.prototype.nodes.values() if kind_of(node) == "observed"]

    def fixed(self) -> Self:
        """This potential without noise: of one batch, where it takes batches."""
        return self

    @property
    def source(self) -> Any:
        """What tells these data from others."""
        return self.args, dict(self.kwargs)

    def state(self) -> dict[str, Any]:
        """What calls have changed in here, in plain values: with it another process gives the same bits."""
        return {"called": self._value_and_grad.called}

    def restore(self, state: Content) -> None:
        """Go on from such a state."""
        try:
            self._value_and_grad.called_before = set(state.value("called", list))
        except TypeError as error:
            raise state.wrong("called", "a list of shapes") from error

    @property
    def execution(self) -> Execution:
        return self._value_and_grad.execution

    @property
    def dim(self) -> int:
        """D, the number of unconstrained coordinates."""
        return self.sites.dim

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """Constrained values by site -> theta (D,)."""
        return self.sites.flatten(values)

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """theta (..., D) -> constrained values (..., *site shape) by site."""
        return self.sites.unflatten(theta)

    def value(self, theta: Tensor) -> Tensor:
        """U of each particle: (N, D) -> (N,)."""
        prior, likelihood = self.energy_parts(theta)
        return prior + likelihood

    def grad(self, theta: Tensor) -> Tensor:
        """The gradient of U at each particle: (N, D) -> (N, D)."""
        return self.value_and_grad(theta)[1]

    def value_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """U (N,) and its gradient (N, D) in one pass; the call that a walk is made of."""
        if self._estimator is not None:
            return self._estimator(self.next_batch(), theta)
        try:
            grad, value = self._call(self._value_and_grad, theta)
        except torch.linalg.LinAlgError:
            return self._one_by_one(theta)
        return value, grad

    def _one_by_one(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Particle after particle: one whose matrices cannot be decomposed has an infinite energy, and alone."""
        value, grad = theta.new_full((len(theta),), math.inf), torch.zeros_like(theta)
        for i in range(len(theta)):
            with suppress(torch.linalg.LinAlgError):
                row, of_row = self._call(self._value_and_grad, theta[i : i + 1])
                grad[i], value[i] = row[0], of_row[0]
        return value, grad

    def inside(self, step: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        """`step(value_and_grad, theta, *inputs)` with the first argument filled in; compiled where the energy is."""
        if self.is_noisy or self._estimator is not None:  # each call is on the next batch
            return partial(step, self.value_and_grad)

        def with_energy(function: Callable[[Tensor], tuple[Tensor, ...]], *inputs: Any) -> tuple[Tensor, ...]:
            def value_and_grad(theta: Tensor) -> tuple[Tensor, Tensor]:
                grad, value = function(theta)
                return value, grad

            return step(value_and_grad, *inputs)

        whole = explained(self._value_and_grad.inside(with_energy, self._inputs), self._watch)

        def run(*inputs: Any) -> tuple[Tensor, ...]:
            try:
                return whole(*inputs)
            except torch.linalg.LinAlgError:
                return step(self.value_and_grad, *inputs)

        return run

    def energy_parts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """U split into what the prior (with the Jacobians) and what the observations contribute: (N,), (N,)."""
        prior, likelihood = self._call(self._parts, theta)
        return prior, likelihood

    def _call(self, function: BatchedFunction, theta: Tensor) -> tuple[Tensor, ...]:
        check_theta(theta, self.sites)
        return explained(function, self._watch)(theta.detach(), *self._inputs)

    def _energy(self, theta: Tensor, *data: Tensor) -> Tensor:
        prior, likelihood = self._energy_parts(theta, *data)
        return prior + likelihood

    def _energy_parts(self, theta: Tensor, *data: Tensor) -> tuple[Tensor, Tensor]:
        """One theta (D,) -> the two parts of U. All that runs Pyro is in here: its traced graph runs without."""
        if self._frozen is not None and self._frozen.takes(data):
            return self._frozen.after(theta, *data)
        values, jacobian = self.sites.constrain(theta)
        remaining = iter(data)
        leaves = [next(remaining) if is_data else c for is_data, c in zip(self._is_data, self._constants, strict=True)]
        args, kwargs = tree_unflatten(leaves, self._spec)
        model = self._scaled(self.model)
        with Unvalidated(), self._watch, written_out():
            trace = poutine.trace(poutine.condition(model, data=values)).get_trace(*args, **kwargs)
            trace.compute_log_prob(lambda name, node: name not in self._normal.names and has_density(name, node))
        prior, likelihood = self._tempered(self._normal(theta)) - jacobian, theta.new_zeros(())
        for name, node in trace.nodes.items():
            if name in values and name not in self._normal.names:
                prior = prior - self._tempered(node["log_prob_sum"])
            elif name not in values and has_density(name, node):
                likelihood = likelihood - self._tempered(node["log_prob_sum"])
        return prior, likelihood

    def _tempered(self, energy: Tensor) -> Tensor:
        return energy if self.temperature == 1 else energy / self.temperature

    def _scaled(self, model: Model) -> Model:
        """The model with its likelihood scaled to the full data; all of it is here."""
        return model
