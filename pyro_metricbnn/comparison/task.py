"""What several posteriors of one model are asked about: its data, test data, and how a network predicts.

In: a model, its arguments and test data.  Out: a `Task`, checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model.network import BayesianNetwork
from ..model.sites import Model
from ..plots.canvas import own_numbers
from ..predictions.pointwise import Draws, Layout, find_layout
from ..predictions.prediction import Prediction, predict
from ..predictions.sources import own_arguments
from ..runtime.arguments import check_count

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all posteriors are asked about.

    Args:
        model: The Pyro model.
        arguments: What it is conditioned on.
        layout: Its sites.
        x: A network's inputs in the data; None for other models.
        x_judged: Inputs that predictions are judged at: those of the test data if there are any.
        y_judged: What was observed there.
        has_test: Whether that is data which the posteriors have not seen.
        chunk_size: At most so many rows of x at once.
    """

    model: Model
    arguments: Arguments
    layout: Layout
    x: Any
    x_judged: Any
    y_judged: Tensor | None
    has_test: bool
    chunk_size: int | None = None

    @property
    def is_network(self) -> bool:
        """Whether the model was made by `bayesianize`: then functions are compared, and weights are not."""
        return isinstance(self.model, BayesianNetwork)

    def predict(self, draws: Draws, x: Any) -> Prediction:
        """A network's predictions for draws (S, ...)."""
        return predict(self.model, draws, x, chunk_size=self.chunk_size)  # type: ignore[arg-type]


def set_task(
    model: Model,
    posteriors: Mapping[str, Any],
    arguments: Arguments,
    test: tuple[Any, Any],
    chunk_size: int | None = None,
) -> Task:
    """The model's data, by default those of the first run that has them, and the test data, looked at before long work.

    Raises:
        ValueError: The model does not run on them, or the test data make no sense.
    """
    (x_test, y_test), (args, kwargs) = test, arguments
    _check_test(model, x_test, y_test)
    if chunk_size is not None:
        check_count("chunk_size", chunk_size, "it counts rows of x.")
    if not args and not kwargs:
        found = (own_arguments(source) for source in posteriors.values())
        args, kwargs = next((each for each in found if each[0] or each[1]), ((), {}))
    with own_numbers(device_of(model)):  # a look at the model draws from it
        layout = find_layout(model, args, kwargs)
        if x_test is not None:
            find_layout(model, (x_test, y_test), {})
    x = y = None
    if isinstance(model, BayesianNetwork):
        if "obs" not in layout.observed:
            raise ValueError(
                "y is missing: the model observes nothing without it. Pass compare(model, posteriors, x, y)."
            )
        x, y = inspect.signature(model.forward).bind(*args, **kwargs).arguments["x"], layout.values["obs"]
    judged = (x, y) if x_test is None else (x_test, y_test)
    return Task(
        model=model,
        arguments=(args, kwargs),
        layout=layout,
        x=x,
        x_judged=judged[0],
        y_judged=judged[1],
        has_test=x_test is not None,
        chunk_size=chunk_size,
    )


def _check_test(model: Model, x_test: Any, y_test: Any) -> None:
    if (x_test is None) != (y_test is None):
        raise ValueError(
            f"{'x_test' if x_test is None else 'y_test'} is missing: predictions at x_test are judged by y_test. "
            "Pass both, or neither."
        )
    if x_test is not None and not isinstance(model, BayesianNetwork):
        raise ValueError(
            "x_test is for networks made models by bayesianize: which argument of another model it replaces is not "
            "known. Leave it out; the table has leave-one-out scores."
        )


def device_of(model: Model) -> torch.device:
    """Where a network is; the CPU for a function."""
    names = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
    return next((value.device for value in names), torch.device("cpu"))
