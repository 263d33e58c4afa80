"""What an op cannot do without: every input once from memory, every output once to it.

Activations are float16. A product and a sum are two operations; of attention the two products with
keys and values count, of other ops what each value goes through.
"""

from __future__ import annotations

from luce_core.ops.kv_layout import KvLayout
from luce_core.ops.program import Work
from luce_core.weights.quant_types import QUANT_TYPES
from luce_kernels_rocm.roofline.shapes import Step

VALUE = 2
FLOAT = 4
INDEX = 4


def product(qtype: str, n: int, k: int, rows: int, out: int = VALUE) -> Work:
    """`out` bytes a value of the result; logits are float32."""
    weight = n * QUANT_TYPES[qtype].row_bytes(k)
    return Work(weight + rows * (n * out + k * VALUE), float_operations=2 * rows * n * k)


def norm(rows: int, heads: int, width: int) -> Work:
    values = rows * heads * width
    return Work(2 * values * VALUE + width * FLOAT, float_operations=4 * values)


def rope(rows: int, heads: int, head_dim: int, rotary_dim: int) -> Work:
    read = rows * INDEX + rotary_dim // 2 * FLOAT
    turned = rows * heads * rotary_dim
    return Work(2 * rows * heads * head_dim * VALUE + read, float_operations=3 * turned)


def elementwise(rows: int, width: int, *, operations: int) -> Work:
    """Two inputs and an output, `operations` a value: add 1, swiglu 5."""
    values = rows * width
    return Work(3 * values * VALUE, float_operations=operations * values)


def gather(rows: int, width: int) -> Work:
    return Work(2 * rows * width * VALUE + rows * INDEX)


def embedding(qtype: str, rows: int, k: int) -> Work:
    return Work(rows * (QUANT_TYPES[qtype].row_bytes(k) + k * VALUE + INDEX))


def greedy(rows: int, vocab: int) -> Work:
    """Float32 logits."""
    return Work(rows * (vocab * FLOAT + INDEX), float_operations=rows * vocab)


def kv_write(layout: KvLayout, rows: int) -> Work:
    values = 2 * layout.kv_heads * layout.head_dim
    return Work(rows * (values * VALUE + INDEX + layout.bytes_per_token))


def attention(layout: KvLayout, heads: int, step: Step) -> Work:
    """The keys and values of each segment once, whoever attends to them."""
    keys = step.segments * (step.context + step.rows)
    pairs = step.segments * (step.rows * step.context + step.rows * (step.rows + 1) // 2)
    values = 2 * step.all_rows * heads * layout.head_dim
    tables = step.segments * -(-(step.context + step.rows) // layout.block_size) * INDEX
    return Work(
        keys * layout.bytes_per_token + values * VALUE + tables,
        float_operations=4 * pairs * heads * layout.head_dim,
    )
