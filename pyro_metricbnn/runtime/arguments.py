"""What callers pass, looked at before work starts.

In: an argument and what it is called.  Out: nothing, or an error that says what, why and what to do.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch


class WrongTypeError(TypeError, ValueError):
    """An argument of a type that cannot be right; a ValueError too, as every refusal of this library is."""


def check_type(name: str, value: Any, types: Any, wanted: str, advice: str = "", *, or_none: bool = False) -> None:
    """Refuse a value that is none of these types; `wanted` says what it has to be, `advice` what to do."""
    if not isinstance(value, types) and not (or_none and value is None):
        given = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise WrongTypeError(f"{name} must be {wanted}, got {given}{advice and ': '}{advice}.")


def check_model(model: Any) -> None:
    """Refuse what cannot be called."""
    advice = "pass a function with pyro.sample in it, or a network made a model with bayesianize"
    check_type("model", model, Callable, "a Pyro model (a callable)", advice)


def check_whole(name: str, value: Any, why: str) -> None:
    """Refuse what is not a whole number."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or torch.is_tensor(value):
        raise WrongTypeError(f"{name} must be a whole number, got {str(value)[:60]!r}: {why}")


def check_count(name: str, value: Any, why: str, *, least: int = 1, or_none: bool = False) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if or_none and value is None:
        return
    check_whole(name, value, why)
    if value < least:
        said = "must not be negative" if least == 0 else f"must be at least {least}"
        raise ValueError(f"{name} {said}, got {value}: {why}")


def check_number(
    name: str, value: Any, why: str, *, or_zero: bool = False, or_inf: bool = False, or_none: bool = False
) -> None:
    """Refuse what is not a positive number; zero, infinity and None only where they mean something."""
    if or_none and value is None:
        return
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        raise WrongTypeError(f"{name} must be a number, got {value!r}: {why}")
    if getattr(value, "shape", ()) not in ((), (1,)):
        raise WrongTypeError(f"{name} must be one number, got {tuple(value.shape)} of them: {why}")
    number = float(value)
    if not (number > 0 or (or_zero and number == 0)) or (math.isinf(number) and not or_inf):
        said = "must be positive and finite"
        if or_zero:
            said = "must not be negative" if number < 0 else "must be finite and not negative"
        raise ValueError(f"{name} {said}, got {value}: {why}")


def check_part(name: str, value: Any, why: str) -> None:
    """Refuse what is not a number from 0 to 1."""
    check_number(name, value, why, or_zero=True)
    if value > 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}: {why}")


def check_tensor(name: str, value: Any) -> None:
    """Refuse what is not a tensor, or one without values."""
    check_type(name, value, torch.Tensor, "a tensor", f"pass torch.as_tensor({name})")
    if value.device.type == "meta":
        raise ValueError(f"{name} is on the meta device, where tensors have no values: pass one on a real device.")


def as_tensor(name: str, value: Any, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor of what was given as one, or as an array, a list or a number; where `like` is, and as precise."""
    if torch.is_tensor(value):
        check_tensor(name, value)
        return value if like is None else value.to(like)
    device, dtype = ("cpu", None) if like is None else (like.device, like.dtype)
    try:
        return torch.as_tensor(value, device=device, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise WrongTypeError(f"{name}: {str(value)[:60]!r} is no tensor of numbers. Pass one.") from error


def check_device(name: str, value: torch.Tensor, device: torch.device, of: str) -> None:
    """Refuse a tensor that is not where it is to be used."""
    check_tensor(name, value)
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, but {of} on {device}: pass it .to({str(device)!r}).")


def check_mapping(name: str, value: Any, what: str) -> None:
    """Refuse what is not a mapping by name."""
    check_type(name, value, Mapping, f"a dict of {what} by name")


def real_device(name: str, device: Any) -> torch.device:
    """A device on which tensors have values."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        kind = ValueError if isinstance(device, str) else WrongTypeError
        said = f"{name} is {device!r}, which is no device ({first_line(error)}): pass for example 'cpu' or 'cuda:0'."
        raise kind(said) from error
    if found.type == "meta":
        raise ValueError(f"{name} is the meta device, where tensors have no values: pass for example 'cpu'.")
    return found


def first_line(error: BaseException) -> str:
    """What an error says, without its last full stop; its type, if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removesuffix(".")


def other_precision(name: str, given: torch.dtype, own: torch.dtype) -> str:
    """What to do about inputs of another precision than a network's."""
    cast = {torch.float32: "float()", torch.float64: "double()"}.get(own, f"to({own})")
    return f"The network is {own} and {name} is {given}: pass x.{cast}."


def does_not_run(
    what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception, advice: str
) -> ValueError:
    """What to raise where something was called with arguments that it cannot take."""

    def said(value: Any) -> str:
        if torch.is_tensor(value):
            return f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
        return type(value).__name__

    given = ", ".join([*map(said, args), *(f"{name}= {said(value)}" for name, value in kwargs.items())])
    kind = ValueError if isinstance(error, RuntimeError) else WrongTypeError
    return kind(f"{what} ({given or 'none'}): {first_line(error)}. {advice}")
