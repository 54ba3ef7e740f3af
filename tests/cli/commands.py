"""What the tests of the command line share: small sweeps, what a folder holds, how bad input must end."""

from pathlib import Path

SMALL = ("--seeds", "2", "--episodes", "20")


def files(folder):
    """All that lies in a folder, by relative path."""
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*"))


def check_refused(answer, *words):
    """Exit code 2, nothing on stdout, one line on stderr with all the words."""
    code, out, err = answer
    assert code == 2 and out == "", answer
    assert err.count("\n") == 1 and err.startswith("jaxprivrl: "), err
    for word in words:
        assert word in err, err
