"""What errors and warnings advise can be done: every call and every argument that they name exists."""

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyro_metricbnn

PACKAGE = Path(pyro_metricbnn.__file__).parent
OTHERS = {"persistent_workers", "collate_fn", "config", "obs"}  # of torch's DataLoader, Pyro's reparam and sample
NAMED = re.compile(r"\b([A-Za-z_]\w*)=(?!=)")
CALLED = re.compile(r"\b([A-Z]\w+)\(")


def said() -> Iterator[tuple[str, str]]:
    """The texts of all errors and warnings, with their place; what is filled in is left out."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and "warn" in ast.unparse(node.func)):
                parts = [
                    one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and type(one.value) is str
                ]
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", " ".join(parts)


@functools.cache
def callables() -> dict[str, Any]:
    """All that a user can call, methods by their own name."""
    found = {name: getattr(space, name) for space in pyro_metricbnn.NAMESPACES for name in space.__all__}
    found.update({name: getattr(pyro_metricbnn, name) for name in pyro_metricbnn.__all__})
    classes = [value for value in found.values() if inspect.isclass(value)]
    return {**{n: m for one in classes for n, m in inspect.getmembers(one, callable) if n[0] != "_"}, **found}


@functools.cache
def arguments() -> set[str]:
    names: set[str] = set()
    for value in callables().values():
        try:
            names.update(inspect.signature(value).parameters)
        except (TypeError, ValueError):
            continue
    return names


@pytest.mark.parametrize(("place", "text"), list(said()))
def test_the_arguments_and_classes_that_a_text_names_exist(place: str, text: str) -> None:
    assert set(NAMED.findall(text)) <= arguments() | OTHERS, place
    ours = [name for name in CALLED.findall(text) if hasattr(pyro_metricbnn, name) or name.endswith(("Map", "BNN"))]
    assert all(name in callables() for name in ours), place
