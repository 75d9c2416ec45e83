"""A refiner from what a user writes: a name, one with knobs, and the one knob that all of it comes down to.

In: "steer", "descent", "adam" or a Refiner, and perhaps an effort.  Out: the Refiner.
"""

from dataclasses import replace

from ..model.network import BayesianNetwork
from ..model.structure import Model
from ..runtime.arguments import WrongTypeError
from .anneal import Anneal
from .pull_back import Adam, Descent
from .refiner import Refiner
from .steer import Steer

NAMES: dict[str, type[Refiner]] = {"steer": Steer, "anneal": Anneal, "descent": Descent, "adam": Adam}


def refiner_for(model: Model) -> Refiner:
    """The default: `Anneal` for networks whose noise is inferred, `Steer` for all else.

    With unknown noise the maximum is a network that fits every row, and the way from there to the posterior is long.
    Where a network fits classes, the way from the MAP is worth recording: on small clean sets it predicts better.
    """
    return Anneal() if isinstance(model, BayesianNetwork) and model.likelihood.infers_noise else Steer()


def named_refiner(refiner: Refiner | str, effort: float | None = None) -> Refiner:
    """A refiner from its lower-case name, or itself, with this effort."""
    found: object = refiner
    if isinstance(found, str) and found in NAMES:
        found = NAMES[found]()
    if not isinstance(found, Refiner):
        kind = ValueError if isinstance(refiner, str) else WrongTypeError
        raise kind(f"refiner must be a Refiner or one of {', '.join(map(repr, NAMES))}, got {refiner!r}.")
    if effort is None:
        return found
    if not isinstance(found, (Steer, Anneal)):
        raise ValueError(
            f"effort is a knob of Steer and Anneal: {type(found).__name__} has num_refinements and its step instead. "
            "Set those, or leave refiner out."
        )
    return replace(found, effort=effort)
