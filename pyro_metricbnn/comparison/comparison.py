"""Posteriors of one model beside each other: a table, and a report with pictures.

In: a model, posteriors of any kind and data.  Out: `Comparison`.
"""

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..files.storage import FilePath, write_whole
from ..model.network import BayesianNetwork
from ..model.structure import Model
from ..plots.style import MATPLOTLIB
from ..runtime.arguments import check_count, check_number, check_type
from .contenders import Task, draw_all, named, set_task, stages_of
from .evidence import gather
from .pictures import Section, draw_sections
from .report import fragment, page
from .scores import Score, score

if TYPE_CHECKING:
    from pandas import DataFrame

PACKAGES = ("pyro_metricbnn", "torch", "pyro", "arviz")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What `compare` found; printed, it is the table, in a notebook the whole report."""

    scores: tuple[Score, ...]  # the figures, with what each says
    posteriors: Mapping[str, str]  # what each of them is, by name
    reference: str | None  # the one that the others are compared with
    warnings: Mapping[str, tuple[str, ...]]  # what is wrong with each, by name
    facts: Mapping[str, str]  # the model, the data, versions and the date
    sections: tuple[Section, ...] = field(repr=False)  # the pictures

    @property
    def title(self) -> str:
        """Of the report."""
        count = f"{len(self.posteriors)} posterior{'s' if len(self.posteriors) > 1 else ''}"
        return f"{count} of the {self.facts['model']}"

    @property
    def table(self) -> "DataFrame":
        """A row for each posterior, a column for each figure; NaN where a posterior has none."""
        import pandas

        columns = {one.column.key: dict(one.figures) for one in self.scores}
        return pandas.DataFrame(columns, index=list(self.posteriors)).rename_axis("posterior")

    def __str__(self) -> str:
        import pandas

        shown = {one.column.key: [one.text(name) for name in self.posteriors] for one in self.scores}
        table = pandas.DataFrame(shown, index=list(self.posteriors)).to_string()
        said = [f"WARNING: {name}: {text}" for name, texts in self.warnings.items() for text in texts]
        return "\n".join([table, *said])

    def _repr_html_(self) -> str:
        return fragment(self)

    def save_report(self, path: FilePath) -> None:
        """Write the report as one HTML file; one that is there is replaced when the new one is whole.

        Example:
            >>> compare(model, {"walk": walk}, x, y, pictures=False).save_report(folder / "report.html")
        """
        document = page(self.title, self._repr_html_()).encode()
        write_whole(path, lambda file: file.write(document))


def compare(
    model: Model,
    posteriors: Mapping[str, Any] | Sequence[Any],
    *args: Any,
    x_test: Any = None,
    y_test: Tensor | None = None,
    reference: str | None = None,
    num_samples: int = 1000,
    seconds: Mapping[str, float] | None = None,
    pictures: bool = True,
    stages: bool | None = None,
    chunk_size: int | None = None,
    **kwargs: Any,
) -> Comparison:
    """Posteriors of one model in one table, and a report with pictures that opens without a network.

    Args:
        model: The Pyro model.
        posteriors: By name, or in a list: a `MetricBNN` or Pyro's `MCMC` after `run`, a guide, Trajectories, samples.
        *args: The model's arguments, observations included; by default those of the first run among the posteriors.
        x_test, y_test: New data of a network to judge predictions by; without them it is judged on its data.
        reference: The name of the posterior to compare the others with, such as a long run of NUTS.
        num_samples: Draws of each posterior; of one that has more, so many evenly taken.
        seconds: What each posterior took, by name, for the table.
        pictures: Whether to draw the report's pictures; they need matplotlib.
        stages: Whether the network as it came and the MAP are rows, too; None where a `MetricBNN` meets test data.
        chunk_size: At most this many rows of x at once, for when memory is short.
        **kwargs: The model's keyword arguments.

    Example:
        >>> posteriors = {"walk": walk, "half of it": walk.thinned(2)}
        >>> result = compare(model, posteriors, x, y, reference="walk", pictures=False)
        >>> result.table[["train_nll", "elpd_loo", "wasserstein"]].shape
        (2, 3)
    """
    check_count("num_samples", num_samples, "a posterior has a spread. Take 1000.", least=2)
    sources = named(posteriors, model)
    _check_report(sources, reference, seconds, pictures)
    task = set_task(model, sources, (args, kwargs), (x_test, y_test), chunk_size)
    contenders = draw_all(task, {**stages_of(task, sources, stages), **sources}, num_samples)
    evidence = [gather(task, contender) for contender in contenders]
    return Comparison(
        scores=score(task, evidence, reference, seconds or {}),
        posteriors={one.name: one.description for one in contenders},
        reference=reference,
        warnings={one.contender.name: one.warnings for one in evidence},
        facts=_facts(task),
        sections=draw_sections(task, evidence) if pictures else (),
    )


def _check_report(names: Collection[str], reference: str | None, seconds: Any, pictures: bool) -> None:
    """Refuse names that are none of the posteriors', and pictures that nothing can draw."""
    has = f"is none of the posteriors: they are {', '.join(map(repr, names))}. Name one of them."
    if reference is not None and reference not in names:
        raise ValueError(f"the reference {reference!r} {has}")
    check_type("seconds", seconds, Mapping, "a dict of what each posterior took by name", or_none=True)
    for name, value in (seconds or {}).items():
        if name not in names:
            raise ValueError(f"seconds has {name!r}, which {has}")
        check_number(f"the seconds of {name!r}", value, "they must be a finite number, at least 0.", or_zero=True)
    if pictures and find_spec("matplotlib") is None:
        raise ImportError(f"the report's pictures need {MATPLOTLIB}, or pass pictures=False.")


def _facts(task: Task) -> dict[str, str]:
    """The model, the data, versions and the date, in words."""
    layout, model = task.layout, task.model
    kind, named = "module" if isinstance(model, nn.Module) else "function", model
    likelihood = {}
    if isinstance(model, BayesianNetwork):
        kind, named = "network", model.net
        likelihood = {"likelihood": _short(repr(model.likelihood), 80)}
    sizes = [f"{name} {tuple(shape.size)}" if shape.size else name for name, shape in layout.latent.items()]
    total = sum(shape.size.numel() for shape in layout.latent.values())
    test = {"test data": f"{len(task.y_judged)} rows"} if task.has_test and task.y_judged is not None else {}
    versions = [f"{name} {import_module(name).__version__}" for name in PACKAGES]
    return {
        "model": f"{kind} {_short(getattr(named, '__name__', type(named).__name__), 40)}",
        **likelihood,
        "latent sites": f"{total} coordinates: {', '.join(sizes[:12])}{', …' if len(sizes) > 12 else ''}",
        "data": ", ".join(f"{name} {tuple(value.shape)}" for name, value in layout.values.items()) or "none observed",
        **test,
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _short(text: str, length: int) -> str:
    """On one line, and cut where it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[:length]}…"
