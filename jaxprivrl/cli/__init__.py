"""The command line. Exit codes: 0 done, 1 a checked claim is false, 2 bad input or a full disk, 130 interrupted.

A command whose output nobody reads to its end (`| head`) ends in 141, as programs do that a closed pipe stops. Each
command is a dataclass whose fields are its flags and whose `run` does the work; jax is imported only there.
"""

import contextlib
import dataclasses
import inspect
import io
import os
import re
import sys
from typing import Annotated, Any

import tyro

from jaxprivrl import __version__, _validate
from jaxprivrl.cli.privacy import Account, Audit, Noise
from jaxprivrl.cli.show import List, Plot
from jaxprivrl.cli.simulate import Compare, Reproduce, Sweep, Tune
from jaxprivrl.experiments import plugins

COMMANDS: dict[str, type] = {
    "reproduce": Reproduce,
    "sweep": Sweep,
    "tune": Tune,
    "compare": Compare,
    "plot": Plot,
    "account": Account,
    "audit": Audit,
    "noise": Noise,
    "list": List,
}

_DESCRIPTION = "Differentially private tabular reinforcement learning, batched in JAX, with an epsilon that holds."
_CLOSED_PIPE = 141


def run(argv: list[str]) -> int:
    """Parses and runs one command; bad input ends in one sentence on stderr and exit code 2."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except OSError as error:  # of stdout: `_run` answers for all others
        # What Python still holds for stdout must not be tried again when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _CLOSED_PIPE
        return _refuse(f"The output cannot be written ({error.strerror}). Make room for it.")


def _run(argv: list[str]) -> int:
    if argv == ["--version"]:
        print(f"jaxprivrl {__version__}")
        return 0
    try:
        parsed = _parse(argv)
        if parsed is None:
            return 0
        parsed.check(argv)
        if parsed.plugin:  # a module that starts JAX when it is imported must find it configured
            from jaxprivrl.numerics import runtime

            runtime.configure()
        plugins.load(parsed.plugin)
        return int(parsed.run())
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        print("jaxprivrl: interrupted; what was unfinished is not written.", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:  # XLA says so in its own way
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _refuse("There is not enough memory for this. Pass smaller sizes, or fewer seeds and values.")


def _refuse(sentence: str) -> int:
    print(f"jaxprivrl: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


def _parse(argv: list[str]) -> Any:
    """The command with its flags; None where help was asked for and printed; ValueError for what cannot be read."""
    choices: Any = None
    for name, kind in COMMANDS.items():
        about = tyro.conf.subcommand(name, prefix_name=False, description=inspect.cleandoc(kind.__doc__ or ""))
        choice: Any = Annotated[kind, about]
        choices = choice if choices is None else choices | choice
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                choices, prog="jaxprivrl", description=_DESCRIPTION, args=argv, config=(tyro.conf.OmitArgPrefixes,)
            )
    except SystemExit as end:
        if not end.code:
            return None
        raise ValueError(_sentence(said.getvalue(), argv)) from None


def _sentence(box: str, argv: list[str]) -> str:
    """The parser's complaint, a framed box of many lines, as one sentence with what was expected and a remedy."""
    lines = [line.strip("│ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines() if line.startswith("│")]
    end = next((i for i, line in enumerate(lines) if line.startswith("───")), len(lines))
    body, rest = " ".join(lines[:end]).strip() or " ".join(box.split()), lines[end:]
    command = argv[0] if argv and argv[0] in COMMANDS else ""
    remedy = f"See 'jaxprivrl {command} --help'." if command else "See 'jaxprivrl --help'."
    if not command and argv and not argv[0].startswith("-"):
        return f"{_unknown_command(argv[0])} {remedy}"
    wrong = re.match(r"Error parsing (--[\w-]+):", body)
    if wrong:
        kind = next((line.partition(" ")[2] for line in rest if line.startswith(f"{wrong[1]} ")), "")
        given = re.search(r"(?:instantiated from|arguments:|base 10:|to float:) (\[.*?\]|'.*?')", body)
        if kind and given:
            return f"Expected {wrong[1]} to be {_KINDS.get(kind, kind)}, got {given[1].strip('[]')}. {remedy}"
    unknown = re.match(r"Unrecognized options: (.*)", body)
    words = unknown[1].split(", ") if unknown else re.findall(r"(\S+) \(applied to", body)
    if words:
        flags = _flags(COMMANDS[command]) if command else []
        near = _validate.nearest(words[0], flags) if words[0].startswith("--") and words[0] not in flags else None
        hint = f" Did you mean {near}?" if near else ""
        return f"'{command or 'jaxprivrl'}' has no place for {' '.join(words)}.{hint} {remedy}"
    return f"{body.rstrip('.')}. {remedy}"


_KINDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "{None}|INT": "a whole number",
    "{None}|FLOAT": "a number",
    "[FLOAT [FLOAT ...]]": "numbers",
    "{None}|{[FLOAT [FLOAT ...]]}": "numbers",
}


def _unknown_command(name: str) -> str:
    try:
        return _validate.one_of("command", name, COMMANDS)
    except ValueError as error:
        return str(error)


def _flags(kind: Any) -> list[str]:
    """Flags of a command, as they are typed."""
    return [f"--{'from' if f.name == 'from_run' else f.name.replace('_', '-')}" for f in dataclasses.fields(kind)]
