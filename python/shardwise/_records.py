"""Reads the program's JSON into dataclasses, whose fields have the names of its keys."""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from shardwise._program import Error

T = TypeVar("T")
Reader = Callable[[Any], Any]


class Mismatch(Exception):
    """A value does not have the declared type."""


def read(type_: type[T], printed: Any, command: str) -> T:
    """Returns what a command of the program has printed. Errors: Error if it is not what `type_` declares."""
    try:
        value: T = reader(cast(Any, type_))(printed)
    except Mismatch as error:
        raise Error(f"shardwise: the program and this package must be of one version; {command} printed {error}") from None
    return value


@functools.cache
def reader(type_: Any) -> Reader:
    """Returns a function that converts JSON to `type_`: a dataclass, tuple, literal, union with None, or scalar.

    It raises Mismatch for a missing or unknown key, and for a value of another type.
    """
    origin, arguments = get_origin(type_), get_args(type_)
    if dataclasses.is_dataclass(type_):
        return _reader_of_record(type_)
    if origin is tuple:
        return _reader_of_list(reader(arguments[0])) if arguments[-1] is ... else _reader_of_tuple([*map(reader, arguments)])
    if origin is UnionType and arguments[1:] == (NoneType,):
        one = reader(arguments[0])
        return lambda value: None if value is None else one(value)
    if origin is Literal:
        return lambda value: _checked(value, value in arguments, type_)
    if type_ is float:
        return lambda value: float(_checked(value, type(value) in (int, float), type_))
    if type_ in (int, str, bool):
        return lambda value: _checked(value, type(value) is type_, type_)
    raise TypeError(type_)


def _checked(value: Any, is_right: bool, type_: Any) -> Any:
    if not is_right:
        raise Mismatch(f"{value!r:.60} instead of {getattr(type_, '__name__', type_)}")
    return value


def _reader_of_list(of_one: Reader) -> Reader:
    return lambda values: tuple(of_one(value) for value in _checked(values, type(values) is list, tuple))


def _reader_of_tuple(readers: list[Reader]) -> Reader:
    def read(values: Any) -> Any:
        _checked(values, type(values) is list and len(values) == len(readers), tuple)
        return tuple(of_one(value) for of_one, value in zip(readers, values, strict=True))

    return read


def _reader_of_record(type_: Any) -> Reader:
    readers = {name: reader(hint) for name, hint in get_type_hints(type_).items()}

    def read(values: Any) -> Any:
        keys = _checked(values, type(values) is dict, type_).keys()
        if keys != readers.keys():
            raise Mismatch(f"{sorted(keys ^ readers.keys())}, which {type_.__name__} and the program do not share")
        return type_(**{name: of_one(values[name]) for name, of_one in readers.items()})

    return read
