"""A refiner from what a user writes: a name, one with knobs, and the one knob that all of it comes down to.

In: "steer", "descent", "adam" or a Refiner, and perhaps an effort.  Out: the Refiner.
"""

from dataclasses import replace

from ..runtime.arguments import WrongTypeError
from .pull_back import Adam, Descent
from .refiner import Refiner
from .steer import Steer

NAMES: dict[str, type[Refiner]] = {"steer": Steer, "descent": Descent, "adam": Adam}


def named_refiner(refiner: Refiner | str | None, effort: float | None = None) -> Refiner:
    """A refiner from its lower-case name, or itself, with this effort; None is `Steer()`."""
    found: object = Steer() if refiner is None else refiner
    if isinstance(found, str) and found in NAMES:
        found = NAMES[found]()
    if not isinstance(found, Refiner):
        kind = ValueError if isinstance(refiner, str) else WrongTypeError
        raise kind(f"refiner must be a Refiner or one of {', '.join(map(repr, NAMES))}, got {refiner!r}.")
    if effort is None:
        return found
    if not isinstance(found, Steer):
        raise ValueError(
            f"effort is a knob of Steer: {type(found).__name__} has num_refinements and its step instead. Set those, "
            "or leave refiner out."
        )
    return replace(found, effort=effort)
