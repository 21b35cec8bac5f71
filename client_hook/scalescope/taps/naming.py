"""The names that a model's author gave, without the traces of wrappers.

Compiling, data parallelism, sharding and checkpointing add their own segments to a name, and the same layer must
carry the same name with and without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

# What a wrapper calls what it wraps, anywhere in a model.
WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def plain(name: str) -> str:
    """The name of a parameter or buffer inside an unwrapped model, without inner wrappers."""
    for wrapper in WRAPPED:
        name = name.replace(f"{wrapper}.", "")
    return name


def prefixes(models: Sequence[nn.Module]) -> list[str]:
    """Nothing for a single model; else the class, numbered where two share one."""
    if len(models) < 2:
        return [""] * len(models)
    classes = [type(unwrapped(model)).__name__ for model in models]
    return [
        f"{name}." if classes.count(name) == 1 else f"{name}{classes[:place].count(name)}."
        for place, name in enumerate(classes)
    ]


def unwrapped(model: nn.Module) -> nn.Module:
    """The author's module inside compiling and data-parallel wrappers."""
    while True:
        inner = model.module if isinstance(model, _PARALLEL) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def wrapped(module: nn.Module, *, top: bool) -> nn.Module | None:
    """What ``module`` wraps without a trace; None for an author's own. Data parallelism is a wrapper at the ``top``."""
    if top and isinstance(module, _PARALLEL):
        inner: nn.Module = module.module
        return inner
    # What is registered, since a wrapper answers for what it wraps; a scripted module's is no dict.
    registered = module._modules  # noqa: SLF001 - children() leaves out a module that is there twice
    return next((registered[name] for name in WRAPPED if name in registered), None)
