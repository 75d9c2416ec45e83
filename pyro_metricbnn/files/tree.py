"""Trees of tensors and plain values as JSON, and back.

In: a tree of numbers, strings, None, dtypes, tensors, lists, tuples and dicts.  Out: JSON, with names in the places of
tensors, and the tensors by name. What JSON has no word for is an object with one key, which names its type.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
CODES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"}
CODES |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"}


class Tree:
    """`values` that JSON has words for, and `tensors` by name, each once; of a type without a code as their bytes.

    Raises ValueError of an object that a file without code cannot hold.
    """

    def __init__(self, tree: Any, where: str = "") -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self.values = self._encoded(tree, where)

    def _encoded(self, value: Any, where: str) -> Any:
        dense = torch.is_tensor(value) and value.layout == torch.strided
        if dense and not (value.is_quantized or value.is_nested or value.is_meta):
            return {"tensor": self._named(value.detach().as_subclass(Tensor), where)}
        if isinstance(value, (bool, int, float, str)):
            bare = next(base(value) for base in (bool, int, float, str) if isinstance(value, base))
            return {"float": str(bare)} if isinstance(bare, float) and not math.isfinite(bare) else bare
        if value is None:
            return None
        if type(value) is torch.dtype:
            return {"dtype": str(value)}
        if type(value) in (list, tuple, torch.Size):
            parts = [self._encoded(part, f"{where}[{i}]") for i, part in enumerate(value)]
            return parts if type(value) is list else {type(value).__name__: parts}
        if type(value) is dict:
            keys = [self._encoded(key, where) for key in value]
            parts = [self._encoded(part, f"{where}[{key!r}]") for key, part in value.items()]
            return {"dict": list(zip(keys, parts, strict=True))}
        raise ValueError(
            f"{where or 'the content'} is a {type(value).__module__}.{type(value).__qualname__}: a file that cannot "
            "run code holds only dense tensors, numbers, strings, None, and lists, tuples and dicts of them."
        )

    def _named(self, tensor: Tensor, where: str) -> list[str]:
        """A tensor's name and device; of one that is there as its bytes also its type."""
        layout = tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
        place = (tensor.data_ptr(), tensor.dtype, tensor.device, *layout)
        is_known = tensor.dtype in CODES
        if place not in self._names:
            tensor = tensor.resolve_conj().resolve_neg()
            while where in self.tensors:  # of two keys that look the same
                where += "'"
            self._names[place] = where
            self.tensors[where] = tensor if is_known else tensor.contiguous().unsqueeze(-1).view(torch.uint8)
        return [self._names[place], str(tensor.device), *([] if is_known else [str(tensor.dtype)])]


def decoded(values: Any, load: Callable[[str, str], Tensor]) -> Any:
    """The tree of such values; `load` gets the name and the device of a tensor. Raises what it trips over."""
    if type(values) is list:
        return [decoded(part, load) for part in values]
    if type(values) is not dict:
        return values
    ((kind, inside),) = values.items()
    if kind == "tensor":
        name, device, *dtype = inside
        return load(name, device).view(DTYPES[dtype[0]]).squeeze(-1) if dtype else load(name, device)
    if kind in ("float", "dtype"):
        return float(inside) if kind == "float" else DTYPES[inside]
    return {"tuple": tuple, "Size": torch.Size, "dict": dict}[kind](decoded(part, load) for part in inside)
