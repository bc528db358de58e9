"""Mypy plugin that types the arguments of `evolve` and `of` like the fields of the model."""

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT
from mypy.plugin import MethodSigContext, Plugin
from mypy.types import CallableType, FunctionLike, Instance, get_proper_type


class EvolvePlugin(Plugin):
    """Gives `evolve` and `of` the signature of the model's constructor, with all arguments optional."""

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """Return the hook for both. Only the method name is compared, because subclasses have other full names."""
        return signature if fullname.endswith((".evolve", ".of")) else None


def signature(context: MethodSigContext) -> FunctionLike:
    """Return the signature of `evolve` for the receiver's class, or of `of` for the class itself."""
    model = get_proper_type(context.type)
    default = context.default_signature
    if isinstance(model, FunctionLike) and model.is_type_obj():
        model = get_proper_type(default.ret_type)
    if not isinstance(model, Instance) or not model.type.has_base("tightloop.value._Frozen"):
        return default
    constructor = model.type.get_method("__init__")
    made = get_proper_type(constructor.type) if constructor is not None else None
    if not isinstance(made, CallableType):
        return default
    fields = [
        (name, kind)
        for name, kind, how in zip(made.arg_names, made.arg_types, made.arg_kinds, strict=True)
        if how.is_named() and name is not None
    ]
    # The first argument of `of` is the other model; `**changes` comes last in both.
    return default.copy_modified(
        arg_types=[*default.arg_types[:-1], *(kind for _, kind in fields)],
        arg_kinds=[*default.arg_kinds[:-1], *([ARG_NAMED_OPT] * len(fields))],
        arg_names=[*default.arg_names[:-1], *(name for name, _ in fields)],
    )


def plugin(version: str) -> type[Plugin]:
    """Return the plugin class (https://mypy.readthedocs.io/en/stable/extending_mypy.html)."""
    del version
    return EvolvePlugin
