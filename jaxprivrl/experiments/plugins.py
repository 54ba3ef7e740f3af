"""Modules of a user's own that register mechanisms, learners, schedules or environments."""

import importlib
import sys
import traceback
from collections.abc import Iterable


def load(names: Iterable[str]) -> None:
    """Imports each module, from the current folder or from wherever Python finds it."""
    for name in names:
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ModuleNotFoundError(name=name)
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise ValueError(
                    f"Plugin '{name}' needs the module '{error.name}', which is not there. Install it."
                ) from error
            raise ValueError(
                f"No module '{name}' for --plugin; expected the name of a Python module in the current folder or "
                "installed, such as my_module for my_module.py. Check the name."
            ) from error
        except Exception as error:
            raise ValueError(
                f"Plugin '{name}' cannot be imported: {_place(error)}, {type(error).__name__}: {error}. Mend it."
            ) from error


def _place(error: Exception) -> str:
    """File and line where it happened."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"
