"""What decides the cost of a step: a model's layers, and how many rows of which slots."""

from __future__ import annotations

from dataclasses import dataclass

from luce_core.ops.kv_layout import KvLayout


@dataclass(frozen=True, slots=True)
class Step:
    """`segments` slots with `rows` new rows each behind `context` tokens, logits on the last
    `logits` of them."""

    name: str
    segments: int
    rows: int
    context: int
    prefill: bool
    logits: int = 1

    @property
    def all_rows(self) -> int:
        return self.segments * self.rows

    @property
    def all_logits(self) -> int:
        return self.segments * self.logits

    @property
    def is_verify(self) -> bool:
        """Whether slots keep their state and log what would change it."""
        return not self.prefill and self.rows > 1


STEPS = (
    Step("1 decode row behind 4096 tokens", 1, 1, 4096, False),
    Step("8 decode rows behind 4096 tokens", 8, 1, 4096, False),
    Step("a prompt of 512 rows", 1, 512, 0, True),
)


@dataclass(frozen=True, slots=True)
class Product:
    """`count` layers x @ weight[n, k]^T, multiplied with a scale if `scaled`; the head, and what
    stands beside it, reads the logit rows only."""

    name: str
    count: int
    qtype: str
    n: int
    k: int
    is_head: bool = False
    beside_head: bool = False
    scaled: bool = False

    def rows(self, step: Step) -> int:
        return step.all_logits if self.is_head or self.beside_head else step.all_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """`count` layers of the gated delta rule behind a convolution of `taps` rows; each value head
    has a state [key_dim, value_dim]."""

    count: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4

    @property
    def channels(self) -> int:
        """That the convolution before the rule goes over."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_values(self) -> int:
        """Of a slot and layer."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def log_values(self) -> int:
        """Of a verify row and layer: keys, changes and decays."""
        return self.key_heads * self.key_dim + self.value_heads * (self.value_dim + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """What a draft has beside the layers of a model: `features` of each verified row, rings of
    which a row sees less than `window` tokens, dynamic convolutions of `taps` rows whose factors
    change by groups of `group` channels, and, if `top_k` is not 0, a selector among so many best
    tokens by codebooks of `rank` values."""

    features: int
    window: int
    convolutions: int
    taps: int
    group: int
    top_k: int
    rank: int
    codebook: str


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """`count` layers of `experts` weights [n, k], each with a scale if `scaled`; a row asks for
    `top_k` of them, with `own_inputs` by an input for each."""

    name: str
    count: int
    qtype: str
    n: int
    k: int
    experts: int
    top_k: int
    own_inputs: bool = False
    scaled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """A mixture in each of `count` layers; the first `by_token` of them go by a table. With
    `shared_gate` a row has a value that gates what the shared expert makes of it."""

    count: int
    by_token: int
    experts: int
    top_k: int
    inner: int
    products: tuple[ExpertProduct, ...]
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class Compression:
    """`count` layers with entries for windows of `ratio` tokens, pooled from `series` times
    head_dim channels: twice where windows overlap."""

    name: str
    count: int
    ratio: int
    series: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """`count` layers of attention with one vector for key and value, over a window and, by layer,
    entries; hyper-connections of `streams` around attention and feed-forward. Products of
    `groups` of heads are those of experts."""

    count: int
    heads: int
    head_dim: int
    rotary_dim: int
    query_rank: int
    window: int
    groups: int
    group_product: ExpertProduct
    sparse: Compression
    dense: Compression
    indexer: Compression
    index_heads: int
    top_k: int
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What decides the cost of a step. `norms` are of whole rows, `swiglus` of `ff` values, `adds`
    residual sums; each of `attentions` layers turns, caches and attends to its heads, and
    with `gated_heads` gates what comes out. The rows of `features` layers are left for a draft."""

    name: str
    width: int
    vocab: int
    embedding: str
    products: tuple[Product, ...]
    norms: int
    adds: int
    swiglus: int
    ff: int
    attentions: int
    heads: int
    head_norms: bool
    rotary_dim: int
    layout: KvLayout
    gated_heads: bool = False
    features: int = 0
    delta: DeltaShape | None = None
    draft: DraftShape | None = None
    experts: ExpertsShape | None = None
    latent: LatentShape | None = None
    steps: tuple[Step, ...] = STEPS
