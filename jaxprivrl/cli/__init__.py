"""The command line. Exit codes: 0 done, 1 a checked claim is false, 2 bad input, 130 interrupted.

Each command is a dataclass whose fields are its flags and whose `run` does the work; jax is imported only there.
"""

import inspect
import sys
from typing import Annotated, Any

import tyro

from jaxprivrl.cli.privacy import Account, Audit, Mechanisms
from jaxprivrl.cli.show import List, Plot
from jaxprivrl.cli.simulate import Compare, Reproduce, Sweep, Tune

COMMANDS: dict[str, type] = {
    "reproduce": Reproduce,
    "sweep": Sweep,
    "tune": Tune,
    "compare": Compare,
    "plot": Plot,
    "account": Account,
    "audit": Audit,
    "mechanisms": Mechanisms,
    "list": List,
}

_DESCRIPTION = "Differentially private tabular reinforcement learning, batched in JAX, with an epsilon that holds."


def run(argv: list[str]) -> int:
    """Parses and runs one command; bad input ends in one sentence on stderr and exit code 2."""
    choices: Any = None
    for name, kind in COMMANDS.items():
        about = tyro.conf.subcommand(name, prefix_name=False, description=inspect.cleandoc(kind.__doc__ or ""))
        choice: Any = Annotated[kind, about]  # type: ignore[valid-type]
        choices = choice if choices is None else choices | choice
    parsed = tyro.cli(
        choices, prog="jaxprivrl", description=_DESCRIPTION, args=argv, config=(tyro.conf.OmitArgPrefixes,)
    )
    try:
        return parsed.run()
    except (ValueError, OSError) as error:
        print(f"jaxprivrl: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxprivrl: interrupted; what was unfinished is not written.", file=sys.stderr)
        return 130
