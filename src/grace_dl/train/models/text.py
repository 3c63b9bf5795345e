"""Language models over characters: an LSTM and a small transformer. They score the next character at every position."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTM(nn.Module):
    def __init__(self, num_classes: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_classes, width)
        self.body = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_classes)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.drop(self.body(self.drop(self.embed(codes)))[0]))


class _Layer(nn.Module):
    """Attention and two linear layers, each after a normalisation (as GPT-2 does)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        seen = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm2(x))


class Transformer(nn.Module):
    def __init__(
        self, num_classes: int, width: int, layers: int, heads: int, length: int, dropout: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_classes, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(*(_Layer(width, heads, dropout) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_classes))

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(codes) + self.place[: codes.shape[1]]))


def lstm(num_classes: int = 128, width: int = 256, layers: int = 2, dropout: float = 0.1) -> LSTM:
    """1.1M parameters."""
    return LSTM(num_classes, width, layers, dropout)


def transformer(
    num_classes: int = 128,
    width: int = 192,
    layers: int = 4,
    heads: int = 6,
    length: int = 512,
    dropout: float = 0.1,
) -> Transformer:
    """2M parameters; `length` is the maximum text length."""
    return Transformer(num_classes, width, layers, heads, length, dropout)
