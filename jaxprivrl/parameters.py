"""Declared, typed parameters of environments, learners and schedules, and the text `name:param=value,...` for them.

A text is a name, or a name, a colon and its parameters: `garnet:states=20,seed=3`. The name is the longest registered
one that the text starts with, so that names may hold colons themselves (`gym:FrozenLake-v1:size=8`). A first value
without a name fills the first parameter (`deep_sea:8`). What has one parameter only, a text, takes everything after
the colon for it, commas and all: `mirror:garnet:states=20,seed=3` is the mirror image of `garnet:states=20,seed=3`.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from jaxprivrl import _validate

REQUIRED: Final = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()
"""The default of a parameter that has none: whoever names the object must give it."""

AUTOMATIC: Final = "auto"
"""How the text writes None, the value of a parameter that the object works out for itself."""

_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Parameter(NamedTuple):
    """One parameter of a registered object.

    Attributes:
      name: as written on the command line and as a keyword argument.
      default: its value when nothing is given; its type is the parameter's. None is worked out by the object
        ("auto"), REQUIRED must be given; both need `kind`.
      meaning: one line for help and documentation.
      check: (name, value) -> value, or ValueError; never sees None.
      kind: int, float, bool or str, where the default does not tell.
    """

    name: str
    default: Any
    meaning: str
    check: Callable[[str, Any], Any] | None = None
    kind: type | None = None

    @property
    def type(self) -> type:
        """int, float, bool or str."""
        return self.kind or type(self.default)


class Parametrized(Protocol):
    """What a registry holds, as far as this module is concerned."""

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...


def parse(text: str, kind: str, registry: Mapping[str, Parametrized]) -> tuple[str, dict[str, Any]]:
    """Name and given values of `text`, converted and checked; `kind` is what errors call the object."""
    fits = [name for name in registry if text == name or text.startswith(f"{name}:")]
    if not fits:
        _validate.one_of(kind, text.partition(":")[0], registry)
    name = max(fits, key=len)
    parameters = registry[name].parameters
    if text == name:
        return name, {}
    rest = text[len(name) + 1 :]
    if not rest:
        raise ValueError(
            f"Nothing follows the colon of '{text}'; expected param=value. Write '{name}' for its defaults."
        )
    given: dict[str, Any] = {}
    for parameter, value in _items(name, kind, rest, parameters):
        if parameter.name in given:
            raise ValueError(f"'{text}' gives {parameter.name} twice; expected once. Drop one of them.")
        given[parameter.name] = _read(parameter, value)
    return name, given


def resolve(parameters: Iterable[Parameter], given: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Values of all parameters: the given ones, else their defaults; converted and checked.

    Args:
      parameters: what the object declares.
      given: values by name, as `parse` or a caller in Python gives them.
      owner: the object's name, for errors.
    """
    parameters = tuple(parameters)
    for name in given:
        _find(name, owner, parameters)
    values = {}
    for parameter in parameters:
        value = given.get(parameter.name, parameter.default)
        if value is REQUIRED:
            name = parameter.name
            raise ValueError(f"{owner or 'This'} needs {name}: {parameter.meaning}. Pass {name}=...")
        values[parameter.name] = _convert(parameter, value)
    return values


def format(name: str, values: Mapping[str, Any], parameters: Iterable[Parameter]) -> str:
    """The shortest text that `parse` and `resolve` turn into the same values; defaults are left out."""
    parameters = tuple(parameters)
    resolved = resolve(parameters, values, name)
    changed = [p for p in parameters if resolved[p.name] != p.default]
    if _takes_all(parameters):
        return f"{name}:{resolved[changed[0].name]}" if changed else name
    items = []
    for parameter in changed:
        item = f"{parameter.name}={_write(resolved[parameter.name])}"
        if "," in item:
            raise ValueError(f"{item} of {name} holds a comma; expected none, since commas part parameters. Rename it.")
        items.append(item)
    return f"{name}:{','.join(items)}" if items else name


def at_least(low: float, remedy: str) -> Callable[[str, Any], Any]:
    """A check: finite and not below `low`."""

    def check(name: str, value: Any) -> Any:
        if not math.isfinite(value) or value < low:
            raise ValueError(f"Expected {name}={value} >= {low:g}. {remedy}")
        return value

    return check


def between(low: float, high: float, remedy: str) -> Callable[[str, Any], Any]:
    """A check: not below `low`, not above `high`."""

    def check(name: str, value: Any) -> Any:
        if not low <= value <= high:
            raise ValueError(f"Expected {low:g} <= {name}={value} <= {high:g}. {remedy}")
        return value

    return check


def among(*choices: Any) -> Callable[[str, Any], Any]:
    """A check: one of the choices."""

    def check(name: str, value: Any) -> Any:
        if value not in choices:
            listed = ", ".join(map(str, choices))
            raise ValueError(f"Expected {name}={value} to be one of {listed}. Pass {name}={_nearest(value, choices)}.")
        return value

    return check


def _items(owner: str, kind: str, rest: str, parameters: tuple[Parameter, ...]) -> Iterable[tuple[Parameter, str]]:
    """Parameters and texts of their values, in the order of `rest`."""
    if not parameters:
        raise ValueError(f"{kind.capitalize()} '{owner}' has no parameters; got '{rest}'. Write '{owner}'.")
    if _takes_all(parameters):
        yield parameters[0], rest.removeprefix(f"{parameters[0].name}=")
        return
    for i, item in enumerate(rest.split(",")):
        name, equals, value = item.partition("=")
        if not equals and i > 0:
            raise ValueError(f"'{item}' of {owner} names no parameter; expected param=value. {_listed(parameters)}")
        yield (_find(name.strip(), owner, parameters), value) if equals else (parameters[0], item)


def _takes_all(parameters: tuple[Parameter, ...]) -> bool:
    return len(parameters) == 1 and parameters[0].type is str


def _find(name: str, owner: str, parameters: tuple[Parameter, ...]) -> Parameter:
    """The parameter of that name, or an error with the nearest one."""
    by_name = {p.name: p for p in parameters}
    if not by_name:
        raise ValueError(f"{owner or 'This'} has no parameters; got '{name}'. Drop it.")
    return by_name[_validate.one_of(f"parameter of {owner}" if owner else "parameter", name, by_name)]


def _listed(parameters: tuple[Parameter, ...]) -> str:
    return f"Available: {', '.join(p.name for p in parameters)}."


def _nearest(value: Any, choices: tuple[Any, ...]) -> Any:
    if isinstance(value, str):
        return _validate.nearest(value, map(str, choices)) or choices[0]
    return min(choices, key=lambda choice: abs(choice - value))


def _read(parameter: Parameter, text: str) -> Any:
    """The value that the text means, checked."""
    text = text if parameter.type is str else text.strip()
    if parameter.default is None and text == AUTOMATIC:
        return None
    if parameter.type is str:
        return _convert(parameter, text)
    if parameter.type is bool:
        if text.lower() not in _TRUTH:
            raise _mistyped(parameter, text)
        return _convert(parameter, _TRUTH[text.lower()])
    number: float
    try:
        number = int(text)
    except ValueError:
        try:
            number = float(text)
        except ValueError:
            raise _mistyped(parameter, text) from None
    return _convert(parameter, number)


def _convert(parameter: Parameter, value: Any) -> Any:
    """The value as the parameter's type, checked; 1e6 is a whole number, 2 is a number, True is neither."""
    if value is None and parameter.default is None:
        return None
    wanted = parameter.type
    try:
        if wanted is bool or wanted is str:
            # numpy's own booleans and strings come from arrays in files
            value = value.item() if hasattr(value, "item") else value
            if not isinstance(value, wanted):
                raise TypeError
        elif isinstance(value, bool | str) or math.isnan(value):
            raise TypeError
        elif wanted is int:
            value = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
        else:
            value = float(value)
    except TypeError:
        raise _mistyped(parameter, value) from None
    return value if parameter.check is None else parameter.check(parameter.name, value)


def _mistyped(parameter: Parameter, value: Any) -> ValueError:
    default = parameter.default
    example = f" such as {parameter.name}={_write(default)}" if default is not REQUIRED else ""
    return ValueError(f"Expected {parameter.name}={value} to be {_EXPECTED[parameter.type]}. Pass one{example}.")


def _write(value: Any) -> str:
    """The text that `_read` turns into the value."""
    if value is None:
        return AUTOMATIC
    return str(value).lower() if isinstance(value, bool) else str(value)
