"""Choose the temperature of a run, or its prior's scale: on validation rows, else by cross-validation, else not at all.

In: a kernel and what its walk will be called with.  Out: `Scores`, and where the walk can go on from.
"""

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..energy.minibatches import potential_of
from ..energy.potential import BatchedPotential
from ..model.network import BayesianNetwork
from ..model.structure import find_layout
from ..predictions.pointwise import Pointwise
from ..ranks.joining import share_of
from ..refiners.anneal import Anneal
from ..refiners.steer import Steer
from ..runtime.arguments import WrongTypeError
from ..runtime.progress import progress_bar
from ..search.first_look import first_look
from ..search.starts import begins_anew, leaves_as_trained
from ..walk.kernel import DriftRefineKernel
from ..walk.options import WalkOptions
from .choice import Scores
from .folds import FEWEST_FOLDS, FEWEST_ROWS, NUM_FOLDS, fold_trials
from .trial import NUM_GRADIENTS, Trial

WORK = 1.25e10  # particles times gradients, rows and multiplications of a network, of all folds together
MOST_WORK = 6e10  # with as few folds as there may be: half of what the longest walk of a network takes
MOST_WEIGHTS = 1_000_000  # of a network that walks at all values at once
MOST_ROUNDS = 1  # beyond an end of the grid
PASS_ROWS = "pass rows that it has not seen, run(..., validation=(x, y)), or a number"
IN_BATCHES = (
    "the short walks that would choose have no friction, and the noise of minibatches heats them, which favours cold "
    "values. Pass a number; choose_temperature(..., validation=...) compares whole walks"
)
ROWS_APART = "each rank has a part of the rows, and the choice wants all of them. Pass a number"
Found = tuple[Any, dict[str, Any]]  # the kind's `Scores`, and settings of the walk: where its search can go on from


def is_to_choose(temperature: Any, has_kernel: bool) -> bool:
    """Whether the temperature is "auto"; refuses other words, and a choice for a kernel, which has a temperature."""
    if not isinstance(temperature, str):
        return False
    if temperature != "auto":
        raise WrongTypeError(f"temperature must be a number or 'auto', got {temperature!r}: 1 is the model's own.")
    if has_kernel:
        raise ValueError(
            'temperature="auto" would change the kernel that was given: pass the model instead, and the kernel\'s '
            "settings to MetricBNN."
        )
    return True


def choose(
    kind: type[Trial],
    kernel: DriftRefineKernel,
    args: tuple[Any, ...],
    settings: dict[str, Any],
    validation: tuple[Any, Any] | None,
    progress: bool = True,
) -> Found:
    """The temperature, or the prior's scale, for `kernel.walk(*args, **settings)`, which is 1 until then.

    Raises:
        ValueError: There is a checkpoint, of which it is not known at which value it was begun.
    """
    options, kwargs = WalkOptions.split(settings, kernel.model)
    if options.checkpoint is not None:
        raise ValueError(
            f'a checkpoint goes on at one {kind.scores.name}, and {kind.scores.argument}="auto" would be chosen anew: '
            "run without a checkpoint, or pass the number that an earlier run has taken."
        )
    share = share_of(options.ranks, options.num_particles)

    def work() -> Found:
        why = ROWS_APART if share.num_rows > 1 else _not_walked(kind, kernel, options)
        found: Found = (kind.scores.not_chosen(why), {})
        if not why:
            found = _chosen(kind, kernel, args, kwargs, settings, options, validation, progress)
        found[0].say(progress)
        return found[0], {} if share.is_several else found[1]  # tensors of one GPU are none of another's

    return share.by_first(work)


def _chosen(
    kind: type[Trial],
    kernel: DriftRefineKernel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settings: dict[str, Any],
    options: WalkOptions,
    validation: tuple[Any, Any] | None,
    progress: bool,
) -> Found:
    potential = potential_of(kernel.model, args, kwargs, options.batch_size).at(kernel.temperature)
    if potential.is_noisy:
        return kind.scores.not_chosen(IN_BATCHES), {}
    if validation is not None:
        return _on_validation_rows(kind, kernel, args, settings, validation, progress)
    with _without_warnings():
        first_look(potential, searches=False)  # refuses what the walk would refuse, before long work
    if why := _not_folded(kind, kernel, potential):
        return kind.scores.not_chosen(why), {}
    return _by_folds(kind, potential, progress), {}


def _not_walked(kind: type[Trial], kernel: DriftRefineKernel, options: WalkOptions) -> str:
    """Why short walks would not say what the whole one will predict; nothing where they do."""
    if not isinstance(kernel.model, BayesianNetwork):
        return "it is chosen for networks made models by bayesianize. Pass a number, where another than 1 is wanted"
    if leaves_as_trained(kernel.model):
        return kind.unlike
    if not isinstance(kernel.refiner, (Steer, Anneal)):
        name = type(kernel.refiner).__name__
        return f"it is chosen by short walks of Steer or Anneal, and the refiner is {name}. Try whole walks at several"
    if sum(value.numel() for value in kernel.model.trained_params.values()) > MOST_WEIGHTS:
        return f"above {MOST_WEIGHTS:,} weights, walks at all values at once want too much memory. Pass a number"
    if options.potential is not None:
        return "an energy was given, whose gradients may be estimated in a way of its own. Pass a number"
    return ""


def _not_folded(kind: type[Trial], kernel: DriftRefineKernel, potential: BatchedPotential) -> str:
    """Why the data cannot be cut into folds with a network trained anew for each; nothing where they can."""
    model: Any = kernel.model
    if kernel.mode == "loop":
        return f'there are no validation rows, and mode="loop" is too slow for networks of all folds: {PASS_ROWS}'
    if not begins_anew(model):
        why = "the network is too large to be trained anew, only a part of it is Bayesian, or a part cannot begin anew"
        return f"there are no validation rows, and {why}: {PASS_ROWS}"
    x, y = _data(potential)
    if not (torch.is_tensor(x) and torch.is_tensor(y) and x.dim() and y.dim() and len(x) == len(y)):
        return f"there are no validation rows, and which rows of x belong to one of y is not known: {PASS_ROWS}"
    if len(y) < FEWEST_ROWS:
        return f"there are no validation rows, and {len(y)} rows are too few for folds: pass a number"
    if FEWEST_FOLDS * _work(kind, model, x) > MOST_WORK:
        return f"there are no validation rows, and networks for folds of {len(y)} rows would take minutes: {PASS_ROWS}"
    return ""


def _on_validation_rows(
    kind: type[Trial],
    kernel: DriftRefineKernel,
    args: tuple[Any, ...],
    settings: dict[str, Any],
    rows: tuple[Any, Any],
    progress: bool,
) -> Found:
    """From the MAP that the run will leave from."""
    model: Any = kernel.model
    begin, rows = time.perf_counter(), model.taken(*rows)
    with _without_warnings():
        ground = kernel.ground(*args, **{**settings, "progress": progress})
    mode = kernel.mode or ("trace" if kernel.compile is False else "auto")
    execution = {"mode": mode, "expected_calls": NUM_GRADIENTS, "chunk_size": kernel.chunk_size}
    judge = Pointwise(model, rows, {}, find_layout(model, rows, {}))
    trial = kind(ground.on(ground.potential.using(**execution)), judge)
    scores = _scores(kind, lambda: [trial], f"{len(rows[1])} validation rows", begin, 1, progress)
    is_given = settings.keys() & {"initial_params", "map_params", "starts"}
    return scores, {} if is_given else {"initial_params": ground.potential.unflatten(ground.theta_star)}


def _by_folds(kind: type[Trial], potential: BatchedPotential, progress: bool) -> Scores:
    begin, (x, y) = time.perf_counter(), _data(potential)
    count = min(NUM_FOLDS, max(FEWEST_FOLDS, int(WORK / _work(kind, potential.model, x))))
    trials = fold_trials(kind, potential, x, y, count)
    kept: list[Trial] = []

    def each() -> Iterable[Trial]:
        yield from kept
        for trial in trials:
            kept.append(trial)
            yield trial

    held = count * (len(y) // NUM_FOLDS)
    way = f"cross-validation on {held} of {len(y)} rows, held out in {count} folds"
    return _scores(kind, each, way, begin, count, progress)


def _scores(
    kind: type[Trial], trials: Callable[[], Iterable[Trial]], way: str, begin: float, count: int, progress: bool
) -> Scores:
    """Of the grid, and on from an end of it that is taken."""
    rows: dict[float, Tensor] = {}
    values: Sequence[float] = kind.scores.grid
    with progress_bar(desc=kind.scores.name, total=count, disable=not progress, leave=False, unit=" folds") as bar:
        for _ in range(1 + MOST_ROUNDS):
            found = []
            for trial in trials():
                found.append(trial.log_densities(values))
                bar.update()
            rows |= dict(zip(values, -torch.cat(found, dim=1), strict=True))
            scores = kind.scores.of(rows, way, time.perf_counter() - begin, len(found))
            values = scores.next_values()
            if not values:
                break
    return scores


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The walk says them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _data(potential: BatchedPotential) -> tuple[Any, Any]:
    """Inputs and observations of a network."""
    model: Any = potential.model
    given = inspect.signature(model.forward).bind(*potential.args, **potential.kwargs).arguments
    return model.taken(given["x"], given.get("y"))


def _work(kind: type[Trial], model: Any, x: Tensor) -> float:
    """Of one fold: particles times gradients, rows and multiplications, of which convolutions have many a weight."""
    from torch.utils.flop_counter import FlopCounterMode  # brings triton along: a third of the time of our own import

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.net(x[:1])
    weights = sum(value.numel() for value in model.net.parameters())
    each = max(weights, counter.get_total_flops() / 2)
    return kind.num_gradients() * len(x) * each
