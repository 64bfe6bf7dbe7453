"""The shapes of models: parameters, bytes, and operations, from the public configurations.

A shape is a decoder with grouped-query attention and gated feed-forward layers, dense or of experts. Weights and keys
and values are counted in bfloat16. Called by the engine, training and link models.
"""

from __future__ import annotations

import difflib

import msgspec

BYTES = 2
"""Of a weight, and of an element of the KV cache: bfloat16."""


class ModelShape(msgspec.Struct, frozen=True):
    """A decoder-only transformer.

    Attributes:
        name: As in configurations.
        layers, hidden, heads, kv_heads, head_dim, vocabulary: As in the model's configuration.
        intermediate: Width of a dense feed-forward layer; 0 if all layers have experts.
        tied: Whether the output projection is the embedding table.
        experts, experts_per_token, expert_intermediate: Of each layer; 0 experts in a dense model.
        qk_norm: Queries and keys are normalised by head.
        qkv_bias: The projections to queries, keys and values have biases.
        source: Where the numbers stand.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    qk_norm: bool = True
    qkv_bias: bool = False
    source: str = ""

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding table; the output projection has as many."""
        return self.vocabulary * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Of one expert in one layer."""
        return 3 * self.hidden * self.expert_intermediate

    @property
    def parameters(self) -> int:
        """All."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Those that one token passes through, the embedding table included."""
        return self._parameters(self.experts_per_token)

    @property
    def weight_bytes(self) -> int:
        return BYTES * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        return BYTES * 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def layer_flops(self) -> int:
        """Operations of one token in the matrix products of all layers, without attention to others."""
        outside = self.embedding_parameters if self.tied else 2 * self.embedding_parameters
        return 2 * (self.active_parameters - outside)

    @property
    def head_flops(self) -> int:
        """Operations of the output projection for one token."""
        return 2 * self.embedding_parameters

    def attention_flops(self, context: float) -> float:
        """Operations of one token's attention to ``context`` tokens: the scores, and the sum of the values."""
        return 4.0 * self.layers * self.heads * self.head_dim * context

    def flops_per_token(self, context: float = 0.0) -> float:
        """Operations of a forward pass for one token that attends to ``context`` tokens and is projected to logits."""
        return self.layer_flops + self.head_flops + self.attention_flops(context)

    def bytes_read(self, tokens: float) -> float:
        """Bytes of weights that a step over ``tokens`` tokens reads.

        All but the embedding table, of which a step reads some rows only; and of the experts those that at least
        one token goes to, expected for tokens that choose independently and evenly.
        """
        shared = self._parameters(0) - (0 if self.tied else self.embedding_parameters)
        if not self.experts:
            return float(BYTES * shared)
        missed: float = (1.0 - self.experts_per_token / self.experts) ** tokens
        return BYTES * (shared + self.layers * self.expert_parameters * self.experts * (1.0 - missed))

    def _parameters(self, experts: int) -> int:
        """Parameters, if each layer has that many experts besides its router."""
        width, rows = self.hidden, (self.heads + 2 * self.kv_heads) * self.head_dim
        attention = width * rows + self.heads * self.head_dim * width
        extras = 2 * width + 2 * self.head_dim * self.qk_norm + rows * self.qkv_bias
        feed_forward = 3 * width * self.intermediate + width * self.experts + experts * self.expert_parameters
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * (attention + extras + feed_forward) + embeddings + width


SHAPES: dict[str, ModelShape] = {
    each.name: each
    for each in (
        ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, source="config.json of Qwen/Qwen3-8B"),
        ModelShape("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, source="config.json of Qwen/Qwen3-14B"),
        ModelShape("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, source="config.json of Qwen/Qwen3-32B"),
        ModelShape(
            *("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 0, 151936),
            experts=128,
            experts_per_token=8,
            expert_intermediate=768,
            source="config.json of Qwen/Qwen3-30B-A3B",
        ),
        ModelShape(
            *("qwen3-480b-a35b", 62, 6144, 96, 8, 128, 0, 151936),
            experts=160,
            experts_per_token=8,
            expert_intermediate=2560,
            source="config.json of Qwen/Qwen3-Coder-480B-A35B-Instruct",
        ),
        ModelShape(
            *("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064),
            qk_norm=False,
            qkv_bias=True,
            source="config.json of Qwen/Qwen2.5-7B-Instruct",
        ),
    )
}


def shape(name: str) -> ModelShape:
    """The shape of that name.

    Raises:
        ValueError: there is none; the message names the nearest one.
    """
    try:
        return SHAPES[name]
    except KeyError:
        near = difflib.get_close_matches(name.lower(), SHAPES, n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else f"shapes: {', '.join(SHAPES)}"
        raise ValueError(f"simulation.model: unknown model shape '{name}': {hint}") from None
