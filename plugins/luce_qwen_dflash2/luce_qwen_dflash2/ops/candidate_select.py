"""DFlash2's candidate selector: a walk through the best tokens of each row of a block.

Row t offers the `top_k` tokens of largest logits. Token b scores logit(b) + <A[a] * g_t, B[b]>,
where a is the token chosen before (for the first row the block's anchor), A the predecessor and B
the successor codebook, and g_t the row's projected hidden state (`CandidateSelector` of
z-lab/dflash). At temperature T > 0 the choice is the argmax of (score - best score) / T plus the
Gumbel noise that the sampler has for the token there, so that a draft is what the sampler would
choose from these scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from luce_core.batch.packed import PackedBatch
from luce_core.ops.cases import CaseMaker, Inputs, OpCase, Part
from luce_core.ops.spec import EXACT, ArgKind, ArgSpec, OpSpec, OutSpec, Rows
from luce_core.sampling.noise import gumbel_at
from luce_core.weights.quant_types import QuantTensor, dequantize
from luce_qwen_dflash2.ops.case_blocks import block_batch, block_rows
from luce_qwen_dflash2.ops.draft_draw import slot_noise


def keep_blocks(weight: QuantTensor, device: torch.device) -> Tensor:
    """A codebook stays in its quant blocks [V, row_bytes]; only the rows used are dequantised."""
    return weight.blocks.to(device)


def candidate_select(
    logits: Tensor,  # [L, V]
    g: Tensor,  # [L, rank]
    batch: PackedBatch,
    temperatures: Tensor,  # [slots + 1] float32
    noise_keys: Tensor,  # [slots + 1, K] int64, one for each row of a block
    predecessors: Tensor,  # [V, row_bytes] uint8
    successors: Tensor,  # [V, row_bytes] uint8
    out: Tensor,  # [L] int32
    *,
    top_k: int,
    rank: int,
    predecessor_type: str,
    successor_type: str,
) -> None:
    starts = batch.cu_logits.tolist()
    anchors = batch.token_ids.index_select(0, batch.cu_seqlens[:-1])
    for segment, slot in enumerate(batch.slot_ids.tolist()):
        token = anchors[segment].long()
        temperature = temperatures[slot]
        for step, row in enumerate(range(starts[segment], starts[segment + 1])):
            unary = logits[row].float()
            offered = best_tokens(unary, top_k)
            before = dequantize(predecessors[token : token + 1], predecessor_type)[0]
            after = dequantize(successors.index_select(0, offered), successor_type)
            scores = unary[offered] + (after * (before * g[row].float())).sum(1)
            if temperature > 0:
                keys = noise_keys[slot, step].expand(len(offered))
                scores = (scores - scores.max()) / temperature + gumbel_at(keys, offered)
            token = offered[scores.argmax()]
            out[row] = token


def best_tokens(logits: Tensor, count: int) -> Tensor:
    """The `count` tokens of largest logits, ascending by id; of equal ones the lowest ids.

    NaN is never offered; with nothing to offer it is token 0, which the target will judge."""
    least = logits.topk(count).values[-1]
    above = (logits > least).nonzero()[:, 0]
    equal = (logits == least).nonzero()[: count - len(above), 0]
    found = torch.cat((above, equal)).sort().values
    return found if len(found) else torch.zeros(1, dtype=torch.int64, device=logits.device)


def out_shape(logits: Tensor, *step_args: Any, **constants: Any) -> tuple[int, ...]:
    return (logits.shape[0],)


def cases() -> Iterator[OpCase]:
    yield _case("blocks", (8, 2, 8, 5), vocab=1000, top_k=16)
    yield _case("one block", (8,), vocab=300, top_k=16)
    yield _case("long block", (16, 16), vocab=4099, top_k=4)
    yield _case("one candidate", (4, 4), vocab=77, top_k=1)
    yield _case("all candidates", (4, 4), vocab=16, top_k=16)
    for qtype in ("F16", "Q4_K", "Q6_K"):
        yield _case(f"{qtype} codebooks", (8, 8), vocab=300, top_k=16, qtypes=(qtype, "Q8_0"))


def _case(
    name: str,
    widths: tuple[int, ...],
    *,
    vocab: int,
    top_k: int,
    qtypes: tuple[str, str] = ("Q8_0", "Q8_0"),
) -> OpCase:
    rank = 256

    def make(maker: CaseMaker) -> Inputs:
        anchors = [token for width in widths for token in (vocab - width, *(0,) * (width - 1))]
        batch = block_batch([(0, width) for width in widths], maker.device, token_ids=anchors)
        logits = maker.normal(batch.logits, vocab, std=2.0)
        logits[0] = 0.0  # a row of ties
        g = maker.columns(batch.logits, rank, std=3.0)
        temperatures, keys = slot_noise(maker, len(widths))
        weights = tuple(maker.weight(vocab, rank, qtype) for qtype in qtypes)
        alone = []
        for index, rows in enumerate(block_rows([width - 1 for width in widths])):
            own = block_batch(
                [(0, widths[index])],
                maker.device,
                slots=[index],
                token_ids=[vocab - widths[index], *(0,) * (widths[index] - 1)],
            )
            alone.append(Part((logits[rows], g[rows], own, temperatures, keys), rows))
        return Inputs((logits, g, batch, temperatures, keys), weights, alone=tuple(alone))

    facts = {
        "top_k": top_k,
        "rank": rank,
        "predecessor_type": qtypes[0],
        "successor_type": qtypes[1],
    }
    return OpCase(name, facts, make)


SPEC = OpSpec(
    name="candidate_select",
    doc="Draft tokens of each block, chosen one after the other among the top_k of each row by "
    "logit plus a score for the pair with the token before.",
    args=(
        ArgSpec("logits", ArgKind.ACTIVATION, ("L", "V"), Rows.LOGITS),
        ArgSpec("g", ArgKind.ACTIVATION, ("L", "rank"), Rows.LOGITS),
        ArgSpec("batch", ArgKind.BATCH),
        ArgSpec("temperatures", ArgKind.CACHE, ("slots + 1",)),
        ArgSpec("noise_keys", ArgKind.CACHE, ("slots + 1", "K")),
        ArgSpec("predecessors", ArgKind.WEIGHT, ("V", "rank")),
        ArgSpec("successors", ArgKind.WEIGHT, ("V", "rank"), prepared=True),
    ),
    out=OutSpec(Rows.LOGITS, out_shape, torch.int32),
    facts=("top_k", "rank", "predecessor_type", "successor_type"),
    reference=candidate_select,
    prepare=keep_blocks,
    tolerance=EXACT,
    row_invariant=True,
    cases=cases,
)
