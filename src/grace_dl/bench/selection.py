"""The candidates of a benchmark: methods in their text form, and PyTorch's own baselines."""

from __future__ import annotations

from collections.abc import Sequence

from .. import catalog
from ..algebra.text import parse, parse_rule, split_list
from ..errors import ConfigError

DDP = "ddp"
"""DistributedDataParallel without compression: synchronous SGD in float32."""
DDP_FP16 = "ddp-fp16"
"""DistributedDataParallel with PyTorch's own hook that sends float16."""
FSDP = "fsdp"
"""FSDP2 without compression; measured beside methods that are attached to sharded models."""
HSDP = "hsdp"
"""FSDP2 over a mesh of two dimensions, with replicas; a method applies between replicas."""
OPTIMIZER = "optimizer"
"""An optimizer, whose gradients stay where the backward pass put them."""
LOCAL = "local"
"""Local steps, which are attached to no gradients."""
BASELINES = (DDP, DDP_FP16)

ALL = "all"
_ALIASES = {"ssgd": DDP, "float32": DDP}


def canonical(text: str, *, rules: bool = False) -> str:
    """The canonical text of a method or baseline, as used in tables and result files; with `rules`, of local steps too.

    >>> [canonical(text) for text in ("topk", "powersgd:rank=2", "ssgd")]
    ['topk:0.01', 'powersgd:2', 'ddp']
    >>> canonical("sparseloco:100", rules=True)
    'local(chunktopk:64,beta=0.95; every=100)'
    """
    text = _ALIASES.get(text, text)
    if text in BASELINES:
        return text
    try:
        return str(parse_rule(text) if rules else parse(text))
    except ConfigError as error:
        raise ConfigError(f"{text}: {error}") from None


def bare(texts: Sequence[str]) -> dict[str, str]:
    """The methods of a list that are named without the settings they have, and their full texts.

    >>> bare(["topk,int8", "dgc:0.01"])
    {'topk': 'topk:0.01'}
    """
    named = [text for text in split_list(texts) if text not in (ALL, *BASELINES, *_ALIASES)]
    plain = [text for text in named if not set(":(") & set(text)]
    return {text: full for text in plain if (full := canonical(text, rules=True)) != text}


def select(
    texts: Sequence[str] | None,
    *,
    default: Sequence[str],
    beside: Sequence[str] = (),
    rules: bool = False,
) -> list[str]:
    """The canonical texts of a list from the command line, without duplicates.

    Those in `beside` come first, unless the list names a baseline itself. None stands for `default`, "all" for
    `default` and every other method. `rules`: local steps may be named too.

    >>> select(["topk,int8"], default=[], beside=BASELINES)
    ['ddp', 'ddp-fp16', 'topk:0.01', 'int8']
    >>> select(["ssgd", "topk:0.1,powersgd:rank=2"], default=[], beside=BASELINES)
    ['ddp', 'topk:0.1', 'powersgd:2']
    """
    named = [*default] if texts is None else split_list(texts)
    if ALL in named:
        at = named.index(ALL)
        listed = {text.partition(":")[0] for text in default}
        named[at : at + 1] = [*default, *(name for name in catalog.methods() if name not in listed)]
    chosen = [canonical(text, rules=rules) for text in named]
    if not chosen:
        raise ConfigError("the list of methods is empty; name some, as in --methods topk:0.01 powersgd:4.")
    for text in chosen:
        if text in BASELINES and text not in beside:
            raise ConfigError(
                f"{text} is a baseline of PyTorch, not a method, and is not measured here; leave it out."
            )
    if not set(chosen) & set(BASELINES):
        chosen = [*map(canonical, beside), *chosen]
    return list(dict.fromkeys(chosen))
