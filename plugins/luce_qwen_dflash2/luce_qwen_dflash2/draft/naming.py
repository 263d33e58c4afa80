"""What the two families of draft files call their keys and tensors.

Our names are llama.cpp's (architecture `dflash`). Files of `qwen35-dflash-draft` and `dflash-draft`
hold the same weights under names of their own (Luce-Org/lucebox, quantize_draft_q8.py); tensors of
theirs may carry llama.cpp's names as well.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType

LLAMA_CPP = "dflash"
UPSTREAM = ("qwen35-dflash-draft", "dflash-draft")
ARCHITECTURES = (LLAMA_CPP, *UPSTREAM)

_UPSTREAM_TENSORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fc.weight": ("dflash.fc.weight", "dflash_fc.weight"),
        "enc.output_norm.weight": ("dflash.hidden_norm.weight", "dflash_hidden_norm.weight"),
        "selector_hidden.weight": ("dflash.selector.hproj.weight",),
        "selector_predecessor.weight": ("dflash.selector.pred_cb",),
        "selector_successor.weight": ("dflash.selector.succ_cb",),
        "attn_conv_base": ("attn_conv.base",),
        "attn_conv_proj.weight": ("attn_conv.proj.weight",),
        "ffn_conv_base": ("ffn_conv.base",),
        "ffn_conv_proj.weight": ("ffn_conv.proj.weight",),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The full keys of what the families name differently, and aliases of tensors.

    `first_layer` is what `target_layers` counts the target's first layer's output as: llama.cpp
    names the layer whose input is tapped, the others count as the training code does.
    """

    arch: str
    block_size: str
    target_layers: str
    first_layer: int
    mask_token: str
    conv_taps: str
    conv_group: str
    selector_rank: str
    selector_top_k: str
    aliases: Mapping[str, tuple[str, ...]]

    def key(self, name: str) -> str:
        """The full key of what both families name alike."""
        return f"{self.arch}.{name}"

    def tensor(self, name: str, there: Container[str]) -> str:
        """What a file that holds the tensors `there` calls a tensor; if it has none of the names,
        the one that is missing."""
        choices = self._names(name)
        return next((choice for choice in choices if choice in there), choices[0])

    def first_name(self, name: str) -> str:
        """What a new file of this family calls a tensor."""
        return self._names(name)[0]

    def _names(self, name: str) -> list[str]:
        prefix, name = ("", name) if not name.startswith("blk.") else _split_layer(name)
        return [f"{prefix}{alias}" for alias in (*self.aliases.get(name, ()), name)]


def naming_of(arch: str) -> Naming:
    """The naming of one of ARCHITECTURES."""
    if arch == LLAMA_CPP:
        return Naming(
            arch=arch,
            block_size="dflash.block_size",
            target_layers="dflash.target_layers",
            first_layer=1,
            mask_token="tokenizer.ggml.mask_token_id",
            conv_taps="dflash.conv_kernel_size",
            conv_group="dflash.conv_group_size",
            selector_rank="dflash.selector_rank",
            selector_top_k="dflash.selector_top_k",
            aliases={},
        )
    prefix = f"{arch}.dflash"
    return Naming(
        arch=arch,
        block_size=f"{prefix}.block_size",
        target_layers=f"{prefix}.target_layer_ids",
        first_layer=0,
        mask_token=f"{prefix}.mask_token_id",
        conv_taps=f"{prefix}.dflash2.conv_kernel_size",
        conv_group=f"{prefix}.dflash2.conv_group_size",
        selector_rank=f"{prefix}.dflash2.selector_rank",
        selector_top_k=f"{prefix}.dflash2.selector_top_k",
        aliases=_UPSTREAM_TENSORS,
    )


def _split_layer(name: str) -> tuple[str, str]:
    """`blk.3.attn_q.weight` -> (`blk.3.`, `attn_q.weight`)."""
    blk, index, rest = name.split(".", 2)
    return f"{blk}.{index}.", rest
