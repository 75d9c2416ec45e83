"""Rewrite the matrix products of a traced graph, so that a processor is quick at them.

In: a graph of aten operations.  Out: the same graph; its results differ in their last bits from those before.
"""

import operator
from typing import Any

import torch
from torch import fx

NARROW = 16  # floats of a vector register; a product with fewer columns takes 2 to 40 times as long as its transpose

aten = torch.ops.aten


def quick_products(graph: fx.GraphModule) -> None:
    """Matrices with few columns are handled the other way round, and the sum of a bias and a product is one operation.

    A network with one or two outputs has such matrices: column by column their entries lie far apart, and each
    operation on them takes several times as long.
    """
    for node in list(graph.graph.nodes):
        if node.target is aten.add.Tensor and not node.kwargs:
            _summed_in_one(graph.graph, node)
    for node in list(graph.graph.nodes):
        if node.target in (aten.bmm.default, aten.baddbmm.default) and _is_narrow(node):
            _transposed(graph.graph, node)
        elif node.target is aten.cat.default and _is_narrow(node) and not _asks_for_layout(node):
            _joined_as_rows(graph.graph, node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _is_narrow(node: fx.Node) -> bool:
    """Whether it gives matrices (N, ., .) with few columns and more rows."""
    value = node.meta.get("val")
    if not torch.is_tensor(value) or value.dim() != 3 or value.device.type != "cpu":
        return False
    return value.shape[-1] < min(NARROW, value.shape[-2])


def _transposed(graph: fx.Graph, product: fx.Node) -> None:
    """L R as (R' L')', laid out as before where that matters."""
    *term, left, right = product.args
    with graph.inserting_before(product):
        turned = [_turned(graph, of) for of in (*(_as_matrices(graph, of) for of in term), right, left)]
        other = graph.call_function(product.target, tuple(turned))  # type: ignore[arg-type]
        other.meta["val"] = product.meta["val"].transpose(1, 2)
        back = _turned(graph, other)
        if _asks_for_layout(product):
            back = graph.call_function(aten.clone.default, (back,), {"memory_format": torch.contiguous_format})
    back.meta = dict(product.meta)
    product.replace_all_uses_with(back)


def _as_matrices(graph: fx.Graph, term: Any) -> fx.Node:
    """A term that broadcasts to the product, with three dimensions."""
    value = term.meta["val"]
    for _ in range(3 - value.dim()):
        term, value = graph.call_function(aten.unsqueeze.default, (term, 0)), value.unsqueeze(0)
        term.meta["val"] = value
    return term


def _joined_as_rows(graph: fx.Graph, cat: fx.Node) -> None:
    """Columns side by side as the transpose of rows below each other."""
    pieces, *dim = cat.args
    if dim not in ([2], [-1]) or any(of.meta["val"].dim() != 3 for of in pieces):  # type: ignore[union-attr]
        return
    with graph.inserting_before(cat):
        rows = [_turned(graph, of) for of in pieces]  # type: ignore[union-attr]
        joined = graph.call_function(aten.cat.default, (rows, 1))
        joined.meta["val"] = cat.meta["val"].transpose(1, 2)
        back = _turned(graph, joined)
    back.meta = dict(cat.meta)
    cat.replace_all_uses_with(back)


_ANY_LAYOUT = {aten.bmm.default, aten.baddbmm.default, aten.cat.default}  # take it, and lay their results out anew
_SUMS = {aten.sum.default, aten.sum.dim_IntList}
_KEEP_LAYOUT = _SUMS | {
    operator.getitem, aten.split.Tensor, aten.split_with_sizes.default, aten.slice.Tensor, aten.select.int,
    aten.transpose.int, aten.expand.default, aten.unsqueeze.default,
}  # fmt: skip


def _asks_for_layout(node: fx.Node) -> bool:
    """Whether a later operation, such as a view of another shape, relies on how the result lies in memory."""
    waiting, seen = [node], {node}
    while waiting:
        source = waiting.pop()
        for user in source.users:
            if user in seen or user.target in _ANY_LAYOUT or (user.target in _SUMS and len(_lengths(user)) < 2):
                continue
            is_same = user.target is aten.view.default and _lengths(user) == _lengths(source)
            if not (is_pointwise(user) or is_same or user.target in _KEEP_LAYOUT):
                return True
            seen.add(user)
            waiting.append(user)
    return False


_POINTWISE_TOO = {aten.softplus_backward.default, aten.threshold_backward.default, aten.gelu_backward.default}


def is_pointwise(node: fx.Node) -> bool:
    """Whether each entry of the result depends on one entry of each argument."""
    return node.target in _POINTWISE_TOO or torch.Tag.pointwise in getattr(node.target, "tags", ())


def _lengths(node: fx.Node) -> list[int]:
    """Of a result's dimensions, without those of one entry, which lie anywhere."""
    return [length for length in node.meta["val"].shape if length != 1]


def _turned(graph: fx.Graph, matrices: Any) -> fx.Node:
    """The transposes of matrices (N, ., .); of transposes, the matrices."""
    if matrices.target is aten.transpose.int and sorted(matrices.args[1:]) == [1, 2]:
        return matrices.args[0]
    turned = graph.call_function(aten.transpose.int, (matrices, 1, 2))
    turned.meta["val"] = matrices.meta["val"].transpose(1, 2)
    return turned


def _summed_in_one(graph: fx.Graph, total: fx.Node) -> None:
    """A term and a product that nothing else needs: `baddbmm`, if the term broadcasts to the product."""
    for product, term in (total.args, total.args[::-1]):
        if not isinstance(product, fx.Node) or product.target is not aten.bmm.default or len(product.users) > 1:
            continue
        if not isinstance(term, fx.Node) or "val" not in term.meta or "val" not in total.meta:
            continue
        value, shape = term.meta["val"], product.meta["val"].shape
        if value.dtype == product.meta["val"].dtype and total.meta["val"].shape == shape:
            with graph.inserting_before(total):
                one = graph.call_function(aten.baddbmm.default, (term, *product.args))
            one.meta = dict(total.meta)
            total.replace_all_uses_with(one)
            return
