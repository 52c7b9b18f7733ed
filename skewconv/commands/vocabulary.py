"""How values are written on the command line: 36/255 is a number, none is no value, and metavars are one word."""

import pathlib
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import tyro

from skewconv.choices import radius_name, radius_of

_WORDS: dict[Any, str] = {int: "INT", float: "NUMBER", str: "TEXT", pathlib.Path: "PATH"}
REGISTRY = tyro.constructors.ConstructorRegistry()


@REGISTRY.primitive_rule
def _plain(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Numbers, integers, texts and paths, or none of them where the annotation allows None."""
    kinds = get_args(info.type) if get_origin(info.type) in (Union, UnionType) else (info.type,)
    solid = [kind for kind in kinds if kind is not NoneType]
    if len(solid) != 1 or solid[0] not in _WORDS:
        return None
    kind = solid[0]
    read: Any = radius_of if kind is float else kind

    def from_words(words: list[str]) -> Any:
        if NoneType in kinds and words[0].lower() == "none":
            return None
        try:
            return read(words[0])
        except (ArithmeticError, OverflowError) as error:
            raise ValueError(str(error)) from error

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=_WORDS[kind],
        instance_from_str=from_words,
        is_instance=lambda value: isinstance(value, (*kinds, int) if kind is float else kinds),
        str_from_instance=lambda value: [_shown(value)],
    )


@REGISTRY.primitive_rule
def _choice(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """One of some words, or a yes or no, that may be left open: none is understood, and need not be shown."""
    kinds = get_args(info.type) if get_origin(info.type) in (Union, UnionType) else ()
    solid = [kind for kind in kinds if kind is not NoneType]
    if NoneType not in kinds or len(solid) != 1 or (get_origin(solid[0]) is not Literal and solid[0] is not bool):
        return None
    values = (True, False) if solid[0] is bool else get_args(solid[0])
    meanings = {**{str(value).lower(): value for value in values}, "none": None}

    def from_words(words: list[str]) -> Any:
        if words[0].lower() not in meanings:
            raise ValueError(f"{words[0]} is none of {', '.join(meanings)}")
        return meanings[words[0].lower()]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(list(meanings)[:-1]) + "}",
        instance_from_str=from_words,
        is_instance=lambda value: value is None or value in values,
        str_from_instance=lambda value: [_shown(value).lower()],
    )


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return radius_name(value)
    return "none" if value is None else str(value)
