"""DeepSeek V4 Flash: its config's shapes; experts MXFP4, what is FP8 in the original Q8_0, and the
embedding, the head, routers and compressors BF16."""

from __future__ import annotations

from luce_core.ops.kv_layout import KvLayout
from luce_kernels_rocm.roofline.shapes import (
    Compression,
    ExpertProduct,
    ExpertsShape,
    LatentShape,
    ModelShape,
    Product,
)


def deepseek_v4_flash() -> ModelShape:
    width, layers, sparse, dense, rank, inner = 4096, 43, 21, 20, 1024, 2048
    heads, dim, groups, out_rank, vocab = 64, 512, 8, 1024, 129_280
    index_heads, index_dim, experts = 64, 128, (256, 6)
    group_dim = heads * dim // groups
    return ModelShape(
        name="DeepSeek V4 Flash",
        width=width,
        vocab=vocab,
        embedding="BF16",
        products=(
            Product("q to latent", layers, "Q8_0", rank, width),
            Product("q from latent", layers, "Q8_0", heads * dim, rank),
            Product("kv", layers, "Q8_0", dim, width),
            Product("out of groups", layers, "Q8_0", width, groups * out_rank),
            Product("compressor of 4", 2 * sparse, "BF16", 2 * dim, width),
            Product("compressor of 128", 2 * dense, "BF16", dim, width),
            Product("compressor of the indexer", 2 * sparse, "BF16", 2 * index_dim, width),
            Product("indexer q", sparse, "Q8_0", index_heads * index_dim, rank),
            Product("indexer weights", sparse, "BF16", index_heads, width),
            Product("router", layers, "BF16", experts[0], width),
            Product("shared gate, up", 2 * layers, "Q8_0", inner, width),
            Product("shared down", layers, "Q8_0", width, inner),
            Product("head", 1, "BF16", vocab, width, is_head=True),
        ),
        norms=2 * layers + 1,
        adds=layers,
        swiglus=layers,
        ff=inner,
        attentions=0,
        heads=heads,
        head_norms=False,
        rotary_dim=64,
        layout=KvLayout(kv_heads=1, head_dim=dim, block_size=128),
        experts=ExpertsShape(
            count=layers,
            by_token=3,
            experts=experts[0],
            top_k=experts[1],
            inner=inner,
            products=(
                ExpertProduct("gate, up", 2 * layers, "MXFP4", inner, width, *experts),
                ExpertProduct("down", layers, "MXFP4", width, inner, *experts, own_inputs=True),
            ),
        ),
        latent=LatentShape(
            count=layers,
            heads=heads,
            head_dim=dim,
            rotary_dim=64,
            query_rank=rank,
            window=128,
            groups=groups,
            group_product=ExpertProduct(
                "groups", layers, "Q8_0", out_rank, group_dim, groups, groups, own_inputs=True
            ),
            sparse=Compression("entries", sparse, 4, 2, dim),
            dense=Compression("entries", dense, 128, 1, dim),
            indexer=Compression("indexer", sparse, 4, 2, index_dim),
            index_heads=index_heads,
            top_k=512,
            streams=4,
        ),
    )
