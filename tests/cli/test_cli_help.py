"""The command line before any work: help, version, unknown flags, plugins."""

import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SMALL, check_refused, files

import jaxprivrl
from jaxprivrl import schedules
from jaxprivrl.cli import COMMANDS


def child_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_takes_less_than_half_a_second():
    """Processor time, and the least of three, so that a busy machine does not fail it."""
    seconds = []
    for _ in range(3):
        before = child_seconds()
        command = [sys.executable, "-m", "jaxprivrl", "--help"]
        help_ = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds.append(child_seconds() - before)
        assert help_.returncode == 0 and all(name in help_.stdout for name in COMMANDS)
    assert min(seconds) < 0.5


def test_help_imports_no_jax():
    script = (
        "import sys\nfrom jaxprivrl.__main__ import main\n"
        "try:\n    main(['sweep', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'jax', 'xarray', 'matplotlib', 'scipy'} & set(sys.modules)), file=sys.stderr)\n"
    )
    probe = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert probe.stderr.strip() == "[]" and "--epsilons" in probe.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(run, command):
    code, out, err = run(command, "--help")
    assert code == 0 and err == "" and "--help" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_every_help_can_be_typed(run, monkeypatch, command):
    """They are parsed, and say what is wrong if they are; the work is left out."""
    kind = COMMANDS[command]
    examples = [line.strip() for line in kind.__doc__.splitlines() if line.strip().startswith("jaxprivrl ")]
    typed = []
    monkeypatch.setattr(kind, "run", lambda self: typed.append(self) or 0)
    for example in examples:
        words = shlex.split(example)
        assert words[1] == command
        assert run(*words[1:]) == (0, "", ""), example
    assert len(typed) == len(examples) and (examples or command == "list")


def test_version_is_that_of_the_package(run):
    assert run("--version") == (0, f"jaxprivrl {jaxprivrl.__version__}\n", "")


def test_unknown_flag_and_command(run, tmp_path):
    for argv in (("sweep", "--episods", "3"), ("swep",), ()):
        code, out, err = run(*argv)
        assert code == 2 and out == "" and err
    assert files(tmp_path) == []


# -- plugins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["not_there", "not_there.at_all", "./not_there.py", "not-there", ""])
def test_plugin_that_is_not_there_is_refused(run, tmp_path, name):
    check_refused(run("sweep", "--plugin", name, *SMALL, "--out", "a"), f"No module '{name}' for --plugin", "Check")
    check_refused(run("list", "--plugin", name), f"No module '{name}' for --plugin")
    assert files(tmp_path) == []


def test_plugin_that_lacks_a_module_of_its_own_says_which(run, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("needs_more.py").write_text("import a_module_of_another_world\n")
    check_refused(run("list", "--plugin", "needs_more"), "'needs_more' needs the module 'a_module_of_another_world'")


def test_plugin_registers_before_names_are_looked_up(run, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(schedules.SCHEDULES, "at_the_end", None)  # so that it is forgotten afterwards
    monkeypatch.delitem(schedules.SCHEDULES, "at_the_end")
    Path("own_schedule.py").write_text(
        "from jaxprivrl.schedules import SCHEDULES, ScheduleKind\n"
        "SCHEDULES['at_the_end'] = ScheduleKind('at_the_end', 'one release, of all', (), lambda K: [K])\n"
    )
    sweep = ("sweep", *SMALL, "--releases", "at_the_end", "--dry-run", "--json")
    check_refused(run(*sweep), "Unknown schedule 'at_the_end'")
    account = ("account", "--epsilon", 1, "--releases", "at_the_end", "--privatizer", "central_laplace")
    assert run(*account, "--plugin", "own_schedule")[0] == 0
    assert run(*sweep, "--plugin", "own_schedule")[0] == 0
    code, out, _ = run("list", "--plugin", "own_schedule")
    assert code == 0 and "one release, of all" in out
    sys.modules.pop("own_schedule")
