"""Passes over a graph that put one launch in the place of several.

None changes a result: a fused launch rounds what lies between its parts as memory would, and leaves
out writing it only where nobody else reads it. `few_rows` says that no step has more than
NARROW_ROWS rows.
"""

from __future__ import annotations

from collections.abc import Callable

from luce_core.ops.bound import BoundOp
from luce_kernels_rocm.arch import arch_of
from luce_kernels_rocm.configs import NARROW_ROWS, NORM_AGAIN_BYTES, narrow_config
from luce_kernels_rocm.graphs.graph import Graph, Kind, Node, Value, View
from luce_kernels_rocm.offers import LateKernel


def fuse(graph: Graph, *, few_rows: bool) -> None:
    """Residuals and sums with their norms in any step; with few rows also gate and up with their
    swiglu, and norms in front of products."""
    _fuse_residuals(graph)
    if few_rows:
        _fuse_gate_up(graph)
    _fuse_sums(graph)
    if few_rows:
        _fuse_norms(graph)


def _is_our(node: Node, op: str) -> bool:
    """Whether it is a plain call of an op to this plugin's kernel."""
    if node.kind is not Kind.CALL:
        return False
    called = node.ops["op"]
    return called.spec.name == op and isinstance(called.kernel.fn, LateKernel)


def _product_finder(graph: Graph) -> Callable[[View], Node | None]:
    """Finds the product that a view is all of and the only reader of; as the nodes are now."""
    uses = graph.uses()
    products = {n.outs[0].value: n for n in graph.nodes if _is_our(n, "quant_matmul")}

    def product(view: View) -> Node | None:
        alone = view.is_whole and uses[view.value] == 1
        return products.get(view.value) if alone else None

    return product


def _replace(graph: Graph, new: dict[Node, Node], gone: set[Node]) -> None:
    graph.nodes = [new.get(node, node) for node in graph.nodes if node not in gone]


def _fuse_residuals(graph: Graph) -> None:
    """A sum with a product becomes the product's last part, at the place of the sum: the product's
    rows are there, and so is the other summand. Saves writing the product and reading it again."""
    product_of = _product_finder(graph)
    new: dict[Node, Node] = {}
    gone: set[Node] = set()
    for node in graph.nodes:
        if not _is_our(node, "add"):
            continue
        a, b = node.view("a"), node.view("b")
        for summand, residual in ((b, a), (a, b)):
            product = product_of(summand)
            same = summand.value.dtype == node.outs[0].value.dtype
            if product is not None and same and len(residual.tail) == 1:
                reads = {"x": product.reads["x"], "residual": residual}
                new[node] = Node(Kind.PRODUCT, {"product": product.ops["op"]}, reads, node.outs)
                gone.add(product)
                break
    _replace(graph, new, gone)


def _fuse_gate_up(graph: Graph) -> None:
    """Both products are made at the place of swiglu by programs that have both: saves writing and
    reading two rows of the inner width. The tiles must be those that each product would have."""
    product_of = _product_finder(graph)
    new: dict[Node, Node] = {}
    gone: set[Node] = set()
    for node in graph.nodes:
        if not _is_our(node, "swiglu"):
            continue
        gate, up = product_of(node.view("gate")), product_of(node.view("up"))
        if gate is None or up is None or gate.reads["x"] != up.reads["x"]:
            continue
        ops = {"gate": gate.ops["op"], "up": up.ops["op"], "swiglu": node.ops["op"]}
        dtypes = {each.outs[0].value.dtype for each in (gate, up, node)}
        biases = [op.weights[1] for op in (ops["gate"], ops["up"])]
        if len(dtypes) == 1 and biases == [None, None] and _tile(ops["gate"]) == _tile(ops["up"]):
            new[node] = Node(Kind.GATE_UP, ops, {"x": gate.reads["x"]}, node.outs)
            gone |= {gate, up}
    _replace(graph, new, gone)


def _tile(product: BoundOp) -> tuple[int, int, int]:
    """The size of the weight's columns, and how a program of few rows cuts them."""
    facts = product.constants
    config = narrow_config(
        arch_of(product.device), facts["qtype"], facts["n"], facts["k"], NARROW_ROWS
    )
    return facts["n"], config.columns, config.warps


def _fuse_sums(graph: Graph) -> None:
    """A sum and its norm: saves reading the sum again. It is written for those who read it."""
    sums = {node.outs[0].value: node for node in graph.nodes if _is_our(node, "add")}
    new: dict[Node, Node] = {}
    gone: set[Node] = set()
    for node in graph.nodes:
        if not _is_our(node, "rms_norm"):
            continue
        x = node.view("x")
        made = sums.get(x.value)
        whole = x.is_whole and len(x.tail) == 1
        if made is None or made in new or not whole or node.outs[0].value.dtype != x.value.dtype:
            continue
        ops = {"norm": node.ops["op"]}
        new[made] = Node(Kind.ADD_NORM, ops, made.reads, (*made.outs, *node.outs))
        gone.add(node)
    _replace(graph, new, gone)


def _fuse_norms(graph: Graph) -> None:
    """A norm that only products read is done by each of their programs anew. That saves its launch
    and its rows; what it costs are reads of its factors, from caches, so products must be small."""
    outputs = {view.value for view in graph.outputs}
    new: dict[Node, Node] = {}
    gone: set[Node] = set()
    for node in graph.nodes:
        if not _is_our(node, "rms_norm"):
            continue
        x, made = node.view("x"), node.outs[0].value
        if made in outputs or len(x.tail) != 1 or made.dtype != x.value.dtype:
            continue
        readers = [each for each in graph.nodes if made in {view.value for view in each.views}]
        if not all(_takes_norm(each, made) for each in readers):
            continue
        if sum(map(_factor_bytes, readers)) > NORM_AGAIN_BYTES:
            continue
        for each in readers:
            kind = Kind.GATE_UP if each.kind is Kind.GATE_UP else Kind.PRODUCT
            parts = {"product": each.ops["op"]} if each.kind is Kind.CALL else each.ops
            ops = {**parts, "norm": node.ops["op"]}
            new[each] = Node(kind, ops, {**each.reads, "x": x}, each.outs)
        gone.add(node)
    _replace(graph, new, gone)


def _takes_norm(reader: Node, made: Value) -> bool:
    """Whether it is a product that reads these rows, all of them, as what it multiplies alone."""
    if not (_is_our(reader, "quant_matmul") or reader.kind in (Kind.PRODUCT, Kind.GATE_UP)):
        return False
    residual = reader.reads.get("residual")
    beside = isinstance(residual, View) and residual.value is made
    return reader.view("x").is_whole and not beside


def _factor_bytes(reader: Node) -> int:
    """What all programs of a product read if each reads the factors of a norm."""
    products = [op for name, op in reader.ops.items() if name in ("op", "product", "gate", "up")]
    nbytes = 0
    for product in products:
        n, columns, _ = _tile(product)
        nbytes += -(-n // columns) * product.constants["k"] * 4
    return nbytes
