"""What users have for data, as a network takes it.

In: tensors, NumPy arrays, pandas frames and series.  Out: tensors on the network's device, in its precision.
"""

from typing import Any

import numpy
import torch

from ..runtime.arguments import WrongTypeError


def as_tensors(name: str, value: Any, like: torch.Tensor) -> Any:
    """Arrays, frames and series as tensors like `like`; tensors stay what they are, and so does what is none of these.

    Whole numbers stay whole: they may be labels, or positions in an embedding.
    """
    if isinstance(value, tuple):
        return tuple(as_tensors(f"{name}[{i}]", item, like) for i, item in enumerate(value))
    if hasattr(value, "to_numpy"):  # of pandas, which need not be there
        value = value.to_numpy()
    if not isinstance(value, numpy.ndarray):
        return value
    if value.dtype == object or not (numpy.issubdtype(value.dtype, numpy.number) or value.dtype == bool):
        raise WrongTypeError(
            f"{name} has entries of type {value.dtype}, which are no numbers: encode texts and categories first, as "
            "pandas.get_dummies does, and labels as whole numbers from 0."
        )
    value = numpy.ascontiguousarray(value)
    tensor = torch.from_numpy(value if value.flags.writeable else value.copy()).to(like.device)
    return tensor.to(like.dtype) if tensor.is_floating_point() else tensor
