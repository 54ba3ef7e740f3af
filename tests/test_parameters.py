"""Parameters: texts of every form, what they mean, what is refused, and that writing undoes reading."""

from typing import NamedTuple

import numpy as np
import pytest

from jaxprivrl import parameters
from jaxprivrl.environments import ENVIRONMENTS
from jaxprivrl.parameters import REQUIRED, Parameter, among, at_least, between


class Thing(NamedTuple):
    parameters: tuple[Parameter, ...] = ()


THINGS = {
    "plain": Thing(),
    "mix": Thing(
        (
            Parameter("size", 3, "a size", at_least(1, "Pass more.")),
            Parameter("rate", 0.5, "a rate", between(0, 1, "Pass a share.")),
            Parameter("open", False, "a switch"),
            Parameter("kind", "red", "a colour", among("red", "blue")),
            Parameter("count", None, "a number, or as many as needed", at_least(1, "Pass more."), int),
        )
    ),
    "rest": Thing((Parameter("of", REQUIRED, "anything", kind=str),)),
    "rest:inner": Thing((Parameter("size", 1, "a size"), Parameter("note", "", "a text"))),
}

GOOD = {
    "plain": ("plain", {}),
    "mix": ("mix", {}),
    "mix:8": ("mix", {"size": 8}),
    "mix:8,rate=1": ("mix", {"size": 8, "rate": 1.0}),
    "mix:rate=1e-3,size=1e6": ("mix", {"rate": 0.001, "size": 1_000_000}),
    "mix: size=2 , open=True": ("mix", {"size": 2, "open": True}),
    "mix:open=no,kind=blue": ("mix", {"open": False, "kind": "blue"}),
    "mix:count=auto": ("mix", {"count": None}),
    "mix:count=7": ("mix", {"count": 7}),
    "rest:a=1,b=2": ("rest", {"of": "a=1,b=2"}),
    "rest:of=a:b,c": ("rest", {"of": "a:b,c"}),
    "rest:inner": ("rest:inner", {}),
    "rest:inner:size=2": ("rest:inner", {"size": 2}),
    "rest:innermost": ("rest", {"of": "innermost"}),
}


@pytest.mark.parametrize("text", GOOD)
def test_texts_mean_what_they_say(text):
    name, given = parameters.parse(text, "thing", THINGS)
    assert (name, given) == GOOD[text]
    assert {n: type(v) for n, v in given.items()} == {n: type(v) for n, v in GOOD[text][1].items()}


@pytest.mark.parametrize("text", GOOD)
def test_writing_undoes_reading(text):
    name, given = GOOD[text]
    declared = THINGS[name].parameters
    written = parameters.format(name, given, declared)
    again, values = parameters.parse(written, "thing", THINGS)
    assert again == name
    assert parameters.resolve(declared, values) == parameters.resolve(declared, given)
    assert parameters.format(again, values, declared) == written
    defaults = {p.name: p.default for p in declared}
    assert all(value != defaults[n] for n, value in values.items())


BAD = {
    "mixx": r"Unknown thing 'mixx'\. Did you mean 'mix'\? Available: mix, plain, rest, rest:inner\.",
    "mixed:size=2": r"Unknown thing 'mixed'\. Did you mean 'mix'\?",
    "": r"Unknown thing ''",
    "mix:": r"Nothing follows the colon of 'mix:'; expected param=value\. Write 'mix'",
    "plain:8": r"Thing 'plain' has no parameters; got '8'\. Write 'plain'",
    "mix:siz=2": r"Unknown parameter of mix 'siz'\. Did you mean 'size'\? Available: count, kind, open, rate, size",
    "mix:2,3": r"'3' of mix names no parameter; expected param=value\. Available: size, rate, open, kind, count",
    "mix:2,": r"'' of mix names no parameter",
    "mix:size=2,size=2": r"gives size twice; expected once\. Drop one",
    "mix:2,size=3": r"gives size twice",
    "mix:size=two": r"Expected size=two to be a whole number\. Pass one such as size=3",
    "mix:size=2.5": r"Expected size=2\.5 to be a whole number",
    "mix:size=inf": r"Expected size=inf to be a whole number",
    "mix:size=": r"Expected size= to be a whole number",
    "mix:size=auto": r"Expected size=auto to be a whole number",
    "mix:size=0": r"Expected size=0 >= 1\. Pass more",
    "mix:rate=x": r"Expected rate=x to be a number\. Pass one such as rate=0\.5",
    "mix:rate=nan": r"Expected rate=nan to be a number",
    "mix:rate=2": r"Expected 0 <= rate=2\.0 <= 1\. Pass a share",
    "mix:open=maybe": r"Expected open=maybe to be true or false\. Pass one such as open=false",
    "mix:kind=blu": r"Expected kind=blu to be one of red, blue\. Pass kind=blue",
    "mix:count=0": r"Expected count=0 >= 1",
}


@pytest.mark.parametrize("text", BAD)
def test_wrong_texts_are_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=BAD[text]) as caught:
        parameters.parse(text, "thing", THINGS)
    assert "\n" not in str(caught.value)


def test_values_from_python_are_converted_and_checked():
    declared = THINGS["mix"].parameters
    values = parameters.resolve(declared, {"size": np.int64(4), "rate": 1, "open": np.True_, "kind": np.str_("blue")})
    assert values == {"size": 4, "rate": 1.0, "open": True, "kind": "blue", "count": None}
    assert [type(v) for v in values.values()] == [int, float, bool, str, type(None)]
    for given, message in (
        ({"size": True}, "Expected size=True to be a whole number"),
        ({"size": "4"}, "Expected size=4 to be a whole number"),
        ({"size": None}, "Expected size=None to be a whole number"),
        ({"size": [4]}, r"Expected size=\[4\] to be a whole number"),
        ({"open": 1}, "Expected open=1 to be true or false"),
        ({"kind": 1}, "Expected kind=1 to be text"),
        ({"rate": 3}, "Expected 0 <= rate=3.0 <= 1"),
        ({"sizes": 3}, "Unknown parameter of mix 'sizes'. Did you mean 'size'"),
    ):
        with pytest.raises(ValueError, match=message):
            parameters.resolve(declared, given, "mix")
    with pytest.raises(ValueError, match=r"plain has no parameters; got 'x'\. Drop it"):
        parameters.resolve((), {"x": 1}, "plain")


def test_required_parameters_must_be_given():
    with pytest.raises(ValueError, match=r"rest needs of: anything\. Pass of=\.\.\."):
        parameters.resolve(THINGS["rest"].parameters, {}, "rest")


def test_texts_that_could_not_be_read_back_are_not_written():
    with pytest.raises(ValueError, match=r"note=a,b of rest:inner holds a comma; expected none"):
        parameters.format("rest:inner", {"note": "a,b"}, THINGS["rest:inner"].parameters)


@pytest.mark.parametrize("name", [name for name, environment in ENVIRONMENTS.items() if environment.parameters])
def test_environments_are_read_as_they_are_written(name):
    """Every parameter of every environment but one that must be given survives a round trip on its own."""
    declared = ENVIRONMENTS[name].parameters
    other = {int: lambda v: 2 * v or 1, float: lambda v: (v + 0.4) / 2, bool: lambda v: not v, str: lambda v: "1.1"}
    for parameter in declared:
        if parameter.default is REQUIRED:
            continue
        value = other[parameter.type](parameter.default)
        text = parameters.format(name, {parameter.name: value}, declared)
        assert text.startswith(f"{name}:{parameter.name}=")
        assert parameters.parse(text, "environment", ENVIRONMENTS) == (name, {parameter.name: value})


def test_the_mirror_of_anything_is_written_in_its_shortest_form():
    name, given = parameters.parse("mirror:river_swim:num_states=6", "environment", ENVIRONMENTS)
    assert (name, given) == ("mirror", {"of": "river_swim"})
    text = "mirror:mirror:gym:FrozenLake-v1:size=8,slippery=false"
    name, given = parameters.parse(text, "environment", ENVIRONMENTS)
    assert parameters.format(name, given, ENVIRONMENTS[name].parameters) == text
