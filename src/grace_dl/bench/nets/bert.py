"""BERT with both of its pretraining tasks (Devlin 2019): masked words, and whether two sentences follow each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 30522
LONGEST = 512


class _Layer(nn.Module):
    """Attention and two linear layers, each normalised together with its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        # Three matrices, not one of three times the size: low-rank methods factor each separately.
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        drop = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        x = self.norm1(x + self.drop(self.out(seen.transpose(1, 2).reshape(batch, length, width))))
        return self.norm2(x + self.drop(self.narrow(functional.gelu(self.widen(x)))))


class Bert(nn.Module):
    """Returns the scores of every word at every place, and of the two sentences following each other."""

    def __init__(self, width: int, layers: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LONGEST, width)
        self.sentences = nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width, eps=1e-12), nn.Dropout(dropout)
        self.layers = nn.Sequential(*(_Layer(width, heads, dropout) for _ in range(layers)))
        self.pool = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12))
        self.follows = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.sentences(sentences)
        x = self.layers(self.drop(self.norm(x)))
        words = functional.linear(self.transform(x), self.words.weight, self.bias)
        return words, self.follows(torch.tanh(self.pool(x[:, 0])))
